// Sorts the class by any column, finds a student, opens the student that a link leads to.
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const numbers = head.classList.contains('number');
      const down = head.getAttribute('aria-sort') === (numbers ? null : 'ascending') ||
                   head.getAttribute('aria-sort') === 'ascending';
      heads.forEach(h => h.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const value = row => {
        const text = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        return numbers ? Number(text) : text;
      };
      const order = (a, b) => numbers ? a - b : a.localeCompare(b);
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (down ? -1 : 1) * order(value(a), value(b)));
      table.tBodies[0].append(...rows);
    });
  });
}
const find = document.getElementById('find');
find.hidden = false;
find.addEventListener('input', () => {
  const wanted = find.value.toLowerCase();
  for (const row of document.querySelectorAll('#class tbody tr'))
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
});
const open = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === 'DETAILS') {
    target.open = true;
    target.scrollIntoView();
  }
};
addEventListener('hashchange', open);
open();
