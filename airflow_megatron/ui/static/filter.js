// The filter of the table: comparisons of columns, combined with and, or, not. It is parsed, and never run as a script.

const TOKEN = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(<=|>=|==|!=|!~|=|<|>|~|[()+\-*/,])|([\p{L}_][\p{L}\p{N}_.]*))/uy;
const KEYS = new Set(["and", "or", "not", "in", "true", "false", "none"]);
const DEPTH = 60;

export class FilterError extends Error {}

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new FilterError(`cannot read ${text.slice(start).trim().slice(0, 20)}`);
    const [, digits, quoted, sign, word] = match;
    if (digits !== undefined) found.push({ kind: "value", value: Number(digits) });
    else if (quoted !== undefined) found.push({ kind: "value", value: quoted.slice(1, -1).replace(/\\(.)/g, "$1") });
    else if (sign !== undefined) found.push({ kind: "sign", value: sign });
    else if (KEYS.has(word)) found.push({ kind: "key", value: word });
    else found.push({ kind: "word", value: word });
  }
  return found;
}

const blank = (value) => value === undefined || value === null;

function equal(left, right) {
  if (blank(left) || blank(right)) return blank(left) && blank(right);
  if (typeof left === "number" || typeof right === "number") return Number(left) === Number(right);
  return String(left) === String(right);
}

function ordered(left, right, test) {
  if (blank(left) || blank(right)) return false;
  return typeof left === "number" && typeof right === "number" ? test(left, right) : test(String(left), String(right));
}

const COMPARE = {
  "=": equal,
  "==": equal,
  "!=": (left, right) => !equal(left, right),
  "<": (left, right) => ordered(left, right, (a, b) => a < b),
  "<=": (left, right) => ordered(left, right, (a, b) => a <= b),
  ">": (left, right) => ordered(left, right, (a, b) => a > b),
  ">=": (left, right) => ordered(left, right, (a, b) => a >= b),
  "~": (left, right) => !blank(left) && String(left).toLowerCase().includes(String(right).toLowerCase()),
  "!~": (left, right) => blank(left) || !String(left).toLowerCase().includes(String(right).toLowerCase()),
};

/**
 * Return a function from a row to true or false.
 * @param text the expression; a single word is searched in the point's name
 * @param columns names of the columns; any other name is text
 * @param value function from row and column name to the value of a cell
 */
export function parseFilter(text, columns, value) {
  const word = text.trim();
  const named = (part) => (row) => String(value(row, "point")).toLowerCase().includes(part.toLowerCase());
  // names contain signs of arithmetic: h64-lr1e-3
  if (!/[\s=<>!~()"']/.test(word) && !KEYS.has(word) && !columns.has(word)) return named(word);
  const list = tokens(text);
  if (!list.length) return () => true;
  if (list.length === 1 && list[0].kind !== "key" && !columns.has(String(list[0].value))) {
    return named(word.replace(/^(["'])(.*)\1$/s, "$2"));
  }
  let at = 0;
  let depth = 0;
  const peek = (kind, ...values) => list[at] && list[at].kind === kind && (!values.length || values.includes(list[at].value));
  const take = (kind, ...values) => (peek(kind, ...values) ? list[at++].value : undefined);

  function either() {
    if (++depth > DEPTH) throw new FilterError("too many brackets");
    let left = both();
    while (take("key", "or")) {
      const [a, b] = [left, both()];
      left = (row) => Boolean(a(row)) || Boolean(b(row));
    }
    depth--;
    return left;
  }

  function both() {
    let left = negated();
    while (take("key", "and")) {
      const [a, b] = [left, negated()];
      left = (row) => Boolean(a(row)) && Boolean(b(row));
    }
    return left;
  }

  function negated() {
    let odd = false;
    while (take("key", "not")) odd = !odd;
    const inner = comparison();
    return odd ? (row) => !inner(row) : inner;
  }

  function comparison() {
    const left = sum();
    if (take("key", "in")) {
      if (!take("sign", "(")) throw new FilterError("in needs a list in brackets: lr in (1e-3, 3e-3)");
      const options = [sum()];
      while (take("sign", ",")) options.push(sum());
      if (!take("sign", ")")) throw new FilterError("a bracket is not closed");
      return (row) => options.some((option) => equal(left(row), option(row)));
    }
    const sign = take("sign", ...Object.keys(COMPARE));
    if (sign === undefined) return left;
    const right = sum();
    return (row) => COMPARE[sign](left(row), right(row));
  }

  function sum() {
    let left = product();
    for (let sign; (sign = take("sign", "+", "-")); ) {
      const [a, b, plus] = [left, product(), sign === "+"];
      left = (row) => (plus ? Number(a(row)) + Number(b(row)) : Number(a(row)) - Number(b(row)));
    }
    return left;
  }

  function product() {
    let left = unit();
    for (let sign; (sign = take("sign", "*", "/")); ) {
      const [a, b, times] = [left, unit(), sign === "*"];
      left = (row) => (times ? Number(a(row)) * Number(b(row)) : Number(a(row)) / Number(b(row)));
    }
    return left;
  }

  function unit() {
    let negative = false;
    while (take("sign", "-")) negative = !negative;
    const one = atom();
    return negative ? (row) => -Number(one(row)) : one;
  }

  function atom() {
    if (take("sign", "(")) {
      const inner = either();
      if (!take("sign", ")")) throw new FilterError("a bracket is not closed");
      return inner;
    }
    if (peek("value")) {
      const constant = list[at++].value;
      return () => constant;
    }
    const key = take("key", "true", "false", "none");
    if (key !== undefined) return () => ({ true: true, false: false, none: null })[key];
    const name = take("word");
    if (name === undefined) throw new FilterError(list[at] ? `${list[at].value} is not expected here` : "the expression ends too early");
    return columns.has(name) ? (row) => value(row, name) : () => name;
  }

  const test = either();
  if (at < list.length) throw new FilterError(`${list[at].value} is not expected here`);
  return (row) => Boolean(test(row));
}
