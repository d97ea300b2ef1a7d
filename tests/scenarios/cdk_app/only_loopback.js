// Loaded into every process of the CDK: a connection to another machine is recorded in a file, and fails.
"use strict";

const fs = require("fs");
const net = require("net");

const LOCAL = ["127.0.0.1", "localhost", "::1"];
const connect = net.Socket.prototype.connect;

net.Socket.prototype.connect = function (...parameters) {
  const options = Array.isArray(parameters[0]) ? parameters[0][0] : parameters[0];
  if (options && typeof options === "object" && !options.path && !LOCAL.includes(options.host ?? "localhost")) {
    fs.appendFileSync(process.env.CONNECTIONS, `${options.host}:${options.port}\n`);
    throw new Error(`a connection to ${options.host}`);
  }
  return connect.apply(this, parameters);
};
