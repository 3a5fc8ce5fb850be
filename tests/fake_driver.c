// SPDX-License-Identifier: MIT
// What the kit asks the driver, answered as by a machine with one GPU, or as the environment says.
#include <stdlib.h>
#include <string.h>
static int number(const char *name, int otherwise) {
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { return *version = number("FAKE_DRIVER", 13000), 0; }
int cuDeviceGetCount(int *count) { return *count = number("FAKE_COUNT", 1), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int arch = number("FAKE_ARCH", 89);
    return *value = attribute == 75 ? arch / 10 : arch % 10, device;
}
int cuDeviceGetName(char *name, int room, int device) {
    (void)device;
    return strncpy(name, getenv("FAKE_NAME") ? getenv("FAKE_NAME") : "Fake GPU", (unsigned)room), 0;
}
int cuDeviceGetPCIBusId(char *id, int room, int device) {
    strncpy(id, "0000:7f:00.0", (unsigned)room);
    return id[5] = (char)('7' + device), 0;
}
int cuGetErrorString(int error, const char **text) { return *text = "fake error", error; }
