// Buckets: browse like folders, preview text and images, upload, download, delete.

import { action, say } from "./actions.js";
import { call, send } from "./api.js";
import { go, link } from "./app.js";
import { quote } from "./commands.js";
import { facts, h, section, table } from "./dom.js";
import { ago, bytes, clock, number } from "./format.js";

const PAGE = 200;
const PREVIEW_BYTES = 65_536;
const IMAGE_BYTES_MAX = 20_000_000;
const IMAGES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };

const objectPath = (bucket, key) => `/object/${encodeURIComponent(bucket)}/${key.split("/").map(encodeURIComponent).join("/")}`;

export function buckets() {
  return {
    title: "Buckets",
    parts: { buckets: { topics: ["buckets"], load: async () => (await call("s3", "ListBuckets")).Buckets ?? [] } },
    draw: ({ buckets }) => [
      h(
        "div",
        { class: "head" },
        h("div", {}, h("h1", {}, "Buckets")),
        h(
          "div",
          { class: "buttons" },
          action("Create …", {
            title: "Create a bucket",
            fields: [{ name: "name", label: "Name", required: true, hint: "3 to 63 small letters, digits and hyphens." }],
            command: ({ name }) => `aws s3 mb s3://${name || "NAME"}`,
            run: async ({ name }) => {
              await call("s3", "CreateBucket", { Bucket: name });
              go("buckets", name);
              return `Created ${name}.`;
            },
          }),
        ),
      ),
      section(
        "S3 buckets",
        {},
        table(
          [
            ["Bucket", (one) => h("a", { href: link("buckets", one.Name) }, one.Name), "name"],
            ["Created", (one) => clock(one.CreationDate), "nowrap"],
          ],
          buckets ?? [],
          { key: (one) => one.Name, label: "Buckets", empty: buckets ? "No bucket." : "Loading …" },
        ),
      ),
    ],
  };
}

// #/buckets/BUCKET/PREFIX/ lists a folder, #/buckets/BUCKET/KEY shows an object. The key is one part of the address.
export function bucket(name, key = "") {
  return key && !key.endsWith("/") ? object(name, key) : folder(name, key);
}

function path(bucket, key) {
  const parts = key.split("/").filter(Boolean);
  return h(
    "p",
    { class: "path" },
    h("a", { href: link("buckets") }, "Buckets"),
    " / ",
    h("a", { href: link("buckets", bucket) }, bucket),
    parts.map((part, at) => [
      " / ",
      at === parts.length - 1 && !key.endsWith("/")
        ? part
        : h("a", { href: link("buckets", bucket, `${parts.slice(0, at + 1).join("/")}/`) }, part),
    ]),
  );
}

function folder(bucket, prefix) {
  let tokens = [null];
  const page = {
    title: `${bucket}/${prefix}`,
    parts: {
      list: {
        topics: ["buckets"],
        load: () =>
          call("s3", "ListObjectsV2", {
            Bucket: bucket,
            Prefix: prefix,
            Delimiter: "/",
            MaxKeys: PAGE,
            ...(tokens.at(-1) ? { ContinuationToken: tokens.at(-1) } : {}),
          }),
      },
    },
    draw: ({ list }) => {
      const folders = (list?.CommonPrefixes ?? []).map(({ Prefix }) => ({ key: Prefix, folder: true }));
      const objects = (list?.Contents ?? [])
        .filter(({ Key }) => Key !== prefix)
        .map(({ Key, Size, LastModified }) => ({ key: Key, size: Size, time: LastModified }));
      const turn = (change) => () => {
        change();
        page.view.reload("list");
      };
      return [
        path(bucket, prefix),
        h(
          "div",
          { class: "head" },
          h("div", {}, h("h1", {}, prefix.split("/").at(-2) ?? bucket)),
          h(
            "div",
            { class: "buttons" },
            h(
              "label",
              {},
              "Upload ",
              h("input", {
                type: "file",
                multiple: true,
                "aria-label": "Upload files",
                onchange: async (event) => {
                  await upload([...event.target.files]);
                  event.target.value = "";
                },
              }),
            ),
            prefix || folders.length || objects.length
              ? null
              : action("Delete the bucket", {
                  danger: true,
                  title: `Delete the bucket ${bucket}?`,
                  question: "It is empty.",
                  command: () => `aws s3 rb s3://${bucket}`,
                  run: async () => {
                    await call("s3", "DeleteBucket", { Bucket: bucket });
                    go("buckets");
                    return `${bucket} is deleted.`;
                  },
                }),
          ),
        ),
        h(
          "section",
          {
            "aria-label": "Objects",
            ondragover: (event) => {
              event.preventDefault();
              event.currentTarget.classList.add("drop");
            },
            ondragleave: (event) => event.currentTarget.classList.remove("drop"),
            ondrop: (event) => {
              event.preventDefault();
              event.currentTarget.classList.remove("drop");
              upload([...event.dataTransfer.files]);
            },
          },
          table(
            [
              [
                "Name",
                (one) =>
                  h(
                    "a",
                    { href: link("buckets", bucket, one.key) },
                    one.folder ? `${one.key.slice(prefix.length)}` : one.key.slice(prefix.length),
                  ),
                "name",
              ],
              ["Size", (one) => (one.folder ? "" : bytes(one.size)), "right"],
              ["Changed", (one) => (one.time ? h("span", { title: clock(one.time) }, ago(one.time)) : ""), "nowrap"],
            ],
            [...folders, ...objects],
            {
              key: (one) => one.key,
              label: "Objects",
              empty: list ? "Nothing here. Drop files here to upload them." : "Loading …",
            },
          ),
          h(
            "div",
            { class: "buttons" },
            tokens.length > 1 ? h("button", { type: "button", onclick: turn(() => tokens.pop()) }, "Previous page") : null,
            list?.NextContinuationToken
              ? h("button", { type: "button", onclick: turn(() => tokens.push(list.NextContinuationToken)) }, "Next page")
              : null,
          ),
        ),
      ];
    },
  };
  const upload = async (files) => {
    for (const file of files) {
      say(`Uploading ${file.name} (${bytes(file.size)}) …`);
      try {
        await send("PUT", objectPath(bucket, prefix + file.name), file, { "Content-Type": "application/octet-stream" });
        say(`Uploaded ${file.name}.`);
      } catch (error) {
        say(`${file.name} was not uploaded: ${error.message}`);
      }
    }
    await page.view.reload("list");
  };
  return page;
}

function object(bucket, key) {
  let url = null;
  return {
    title: key,
    parts: {
      head: { topics: [], load: () => call("s3", "HeadObject", { Bucket: bucket, Key: key }) },
      preview: {
        topics: [],
        load: () =>
          preview(bucket, key).then((found) => {
            url = found.image ?? null;
            return found;
          }),
      },
    },
    close: () => url && URL.revokeObjectURL(url),
    draw: ({ head, preview }) => [
      path(bucket, key),
      h(
        "div",
        { class: "head" },
        h(
          "div",
          {},
          h("h1", {}, key.split("/").at(-1)),
          h("p", {}, head ? `${bytes(head.ContentLength)} · ${clock(head.LastModified)}` : ""),
        ),
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", class: "main", onclick: () => download(bucket, key) }, "Download"),
          action("Delete", {
            danger: true,
            title: `Delete ${key}?`,
            question: "In a bucket without versions, its bytes are lost.",
            command: () => `aws s3 rm ${quote(`s3://${bucket}/${key}`)}`,
            run: async () => {
              await call("s3", "DeleteObject", { Bucket: bucket, Key: key });
              go("buckets", bucket, key.slice(0, key.lastIndexOf("/") + 1));
              return `${key} is deleted.`;
            },
          }),
        ),
      ),
      section(
        "Preview",
        { "data-key": "preview", class: "preview" },
        preview ? drawPreview(preview, key) : h("p", { class: "empty" }, "Loading …"),
      ),
      head
        ? section(
            "Object",
            { "data-key": "facts" },
            facts([
              ["Key", key],
              ["Bytes", number(head.ContentLength)],
              ["Content type", head.ContentType],
              ["ETag", head.ETag],
              ["Version", head.VersionId],
              ["Storage class", head.StorageClass],
              ["Encryption", head.ServerSideEncryption],
              ...Object.entries(head.Metadata ?? {}),
            ]),
          )
        : null,
    ],
  };
}

async function preview(bucket, key) {
  const type = IMAGES[key.split(".").at(-1).toLowerCase()];
  const { ContentLength: size } = await call("s3", "HeadObject", { Bucket: bucket, Key: key });
  if (!size) return { text: "", size };
  if (type && size <= IMAGE_BYTES_MAX) {
    const content = await (await send("GET", objectPath(bucket, key))).arrayBuffer();
    return { image: URL.createObjectURL(new Blob([content], { type })) };
  }
  const content = new Uint8Array(
    await (await send("GET", objectPath(bucket, key), undefined, { Range: `bytes=0-${PREVIEW_BYTES - 1}` })).arrayBuffer(),
  );
  if (content.includes(0)) return { binary: true };
  return { text: new TextDecoder().decode(content), size };
}

function drawPreview({ text, image, size }, key) {
  if (image) return h("img", { src: image, alt: `Preview of ${key}` });
  if (text === undefined) return h("p", { class: "empty" }, "This object is not text.");
  return [
    h("pre", { tabindex: 0, "aria-label": "Preview" }, text),
    size > PREVIEW_BYTES ? h("p", { class: "note" }, `The first 64 KiB of ${bytes(size)}.`) : null,
  ];
}

async function download(bucket, key) {
  try {
    const { url } = await (
      await send("POST", "/ticket", JSON.stringify({ bucket, key }), { "Content-Type": "application/json" })
    ).json();
    h("a", { href: url, download: key.split("/").at(-1) }).click();
  } catch (error) {
    say(error.message);
  }
}
