"use strict";
// Shows an OpenAPI document. Texts are only ever set as text, never as markup.

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  for (const child of children) {
    if (child !== null && child !== undefined && child !== "") made.append(child);
  }
  return made;
}

// A text in which `words` between backticks are code.
function prose(name, text) {
  const parts = (text || "").split("`");
  return element(name, {}, ...parts.map((part, at) => (at % 2 && at < parts.length - 1 ? element("code", {}, part) : part)));
}

function referred(schema) {
  return schema && schema.$ref ? schema.$ref.split("/").pop() : null;
}

function typeOf(schema) {
  if (schema === true || schema === undefined) return "anything";
  const name = referred(schema);
  if (name) return element("a", { href: "#schema-" + name }, name);
  if (schema.allOf) return typeOf(schema.allOf[0]);
  if (schema.anyOf) {
    const either = element("span");
    schema.anyOf.forEach((one, at) => either.append(at ? " or " : "", typeOf(one)));
    return either;
  }
  if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" | ");
  const type = Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type || "anything";
  if (schema.items) return element("span", {}, type + " of ", typeOf(schema.items));
  const bounds = ["format", "minimum", "maximum", "minLength", "maxLength", "default"]
    .filter((key) => schema[key] !== undefined)
    .map((key) => key + " " + schema[key]);
  return bounds.length ? type + " (" + bounds.join(", ") + ")" : type;
}

function rows(titles, lines) {
  const head = element("tr", {}, ...titles.map((title) => element("th", {}, title)));
  const body = lines.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", {}, head, ...body);
}

function contentOf(holder) {
  const shown = element("span");
  Object.entries(holder.content || {}).forEach(([media, content], at) => {
    shown.append(at ? "; " : "", media + ": ", typeOf(content.schema));
  });
  return shown;
}

function operation(method, path, described) {
  const details = element(
    "details",
    { class: "operation", id: described.operationId },
    element(
      "summary",
      {},
      element("span", { class: "method " + method }, method.toUpperCase()),
      element("code", {}, path),
      element("span", { class: "summary" }, described.summary),
    ),
  );
  if (described.description) details.append(prose("p", described.description));
  if (described.parameters.length) {
    const lines = described.parameters.map((one) => [
      element("code", {}, one.name), one.in, typeOf(one.schema), prose("span", one.description),
    ]);
    details.append(element("h4", {}, "Parameters"), rows(["name", "in", "type", ""], lines));
  }
  if (described.requestBody) {
    details.append(element("h4", {}, "Body"), element("p", {}, contentOf(described.requestBody)));
  }
  const lines = Object.entries(described.responses).map(([status, one]) => [
    element("code", {}, status), contentOf(one), prose("span", one.description),
  ]);
  details.append(element("h4", {}, "Answers"), rows(["status", "content", ""], lines));
  details.dataset.words = [method, path, described.summary, ...described.tags].join(" ").toLowerCase();
  return details;
}

function schema(name, described) {
  const shown = element("details", { id: "schema-" + name }, element("summary", {}, element("code", {}, name)));
  if (described.description) shown.append(prose("p", described.description));
  const required = described.required || [];
  const lines = Object.entries(described.properties || {}).map(([key, one]) => [
    element("code", {}, key + (required.includes(key) ? "" : "?")), typeOf(one), prose("span", one.description),
  ]);
  if (lines.length) shown.append(rows(["member", "type", ""], lines));
  return shown;
}

function show(api) {
  document.getElementById("title").textContent = api.info.title + " " + api.info.version;
  document.getElementById("about").replaceChildren(prose("span", api.info.description));
  const main = document.getElementById("operations");
  for (const tag of api.tags) {
    const group = element("section", {}, element("h2", {}, tag.name), prose("p", tag.description));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, described] of Object.entries(methods)) {
        if (described.tags.includes(tag.name)) group.append(operation(method, path, described));
      }
    }
    main.append(group);
  }
  const schemas = document.getElementById("schemas");
  for (const [name, described] of Object.entries(api.components.schemas)) schemas.append(schema(name, described));
  schemas.hidden = false;
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const one of document.querySelectorAll(".operation")) one.hidden = !one.dataset.words.includes(wanted);
  });
  window.addEventListener("hashchange", open);
  open();
}

function open() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

fetch("openapi.json")
  .then((answer) => answer.json())
  .then(show)
  .catch((error) => {
    document.getElementById("about").textContent = "openapi.json cannot be read: " + error;
  });
