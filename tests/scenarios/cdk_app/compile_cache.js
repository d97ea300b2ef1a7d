// Stores the compiled code of large modules in the folder COMPILED, for the next process. The CDK is one module of 16 MB: without
// this, each of its commands compiles it for more than a second. Node 22 has the same built in (NODE_COMPILE_CACHE).
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const Module = require("module");
const path = require("path");
const vm = require("vm");

const LARGE = 1_000_000;
const compile = Module.prototype._compile;

Module.prototype._compile = function (content, filename) {
  if (content.length < LARGE) return compile.call(this, content, filename);
  const stored = path.join(process.env.COMPILED, crypto.createHash("sha256").update(filename).digest("hex"));
  const cachedData = fs.existsSync(stored) ? fs.readFileSync(stored) : undefined;
  const script = new vm.Script(Module.wrap(content.replace(/^#!.*/, "")), { filename, cachedData });
  if (cachedData === undefined || script.cachedDataRejected) {
    process.on("exit", () => {
      fs.writeFileSync(`${stored}.${process.pid}`, script.createCachedData());
      fs.renameSync(`${stored}.${process.pid}`, stored);
    });
  }
  const require = (name) => this.require(name);
  require.resolve = (name, options) => Module._resolveFilename(name, this, false, options);
  Object.assign(require, { main: process.mainModule, extensions: Module._extensions, cache: Module._cache });
  return script.runInThisContext().call(this.exports, this.exports, require, this, filename, path.dirname(filename));
};
