// Perfetto's trace processor, as ui.perfetto.dev runs it: WebAssembly in a worker, asked in protobuf through a port
// (protos/perfetto/trace_processor/trace_processor.proto). node trace_processor.js ENGINE_BUNDLE TRACE QUERY…
// prints for each query its rows, as JSON.
const fs = require('fs'), path = require('path'), vm = require('vm')

const [bundle, trace, ...queries] = process.argv.slice(2)

class XMLHttpRequest { // synchronous, of files beside the bundle
  open(method, url) { this.url = url }
  send() {
    const data = fs.readFileSync(path.join(path.dirname(bundle), path.basename(this.url)))
    this.status = 200
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length)
  }
}

async function started() {
  const replies = []
  const port = {postMessage: data => replies.push(Buffer.from(data))}
  const quiet = {log() {}, warn() {}, error() {}} // what it loads, and calls of the system that it does without
  const scope = {
    console: quiet, WebAssembly, Uint8Array, TypeError, TextDecoder, TextEncoder, URL, performance, XMLHttpRequest,
    importScripts() {}, WorkerGlobalScope: class {}, location: {href: 'http://here/' + path.basename(bundle)},
  }
  scope.self = vm.createContext(scope)
  vm.runInContext(fs.readFileSync(bundle, 'utf8'), scope) // compiles the program, too
  scope.onmessage({data: port})
  await new Promise(resolve => setTimeout(resolve, 0)) // after whatever waits for that
  let count = 0
  return (method, ...args) => {
    replies.length = 0
    port.onmessage({data: new Uint8Array(bytes(1, Buffer.concat([number(1, count++), number(2, method), ...args])))})
    const said = replies.map(reply => fields(fields(reply)[1][0]))
    const fatal = said.find(reply => reply[5])
    if (fatal) throw new Error(String(fatal[5][0]))
    return said
  }
}

// Protobuf

function varint(value) {
  const out = []
  for (; value > 127; value = Math.floor(value / 128)) out.push((value % 128) | 128)
  return Buffer.from([...out, value])
}
const bytes = (id, data) => Buffer.concat([varint(id * 8 + 2), varint(data.length), data])
const number = (id, value) => Buffer.concat([varint(id * 8), varint(value)])

function varints(data) {
  const found = []
  for (let at = 0; at < data.length;) {
    let value = 0n, shift = 0n
    do { value |= BigInt(data[at] & 127) << shift; shift += 7n } while (data[at++] & 128)
    found.push(Number(BigInt.asIntN(64, value)))
  }
  return found
}

function fields(data) { // id → its values: numbers, or Buffers
  const found = {}
  for (let at = 0; at < data.length;) {
    const next = () => { const from = at; while (data[at++] & 128); return varints(data.subarray(from, at))[0] }
    const key = next(), id = Math.floor(key / 8)
    let value
    if (key % 8 === 0) value = next()
    else {
      const size = key % 8 === 2 ? next() : key % 8 === 1 ? 8 : 4
      value = data.subarray(at, at += size)
    }
    (found[id] ??= []).push(value)
  }
  return found
}

function rows(replies) {
  const columns = [], cells = []
  for (const reply of replies) {
    const result = fields(reply[203][0])
    if (result[2] && result[2][0].length) throw new Error(String(result[2][0]))
    for (const name of result[1] ?? []) columns.push(String(name))
    for (const batch of (result[3] ?? []).map(fields)) {
      const all = id => Buffer.concat(batch[id] ?? [])
      const whole = varints(all(2)), floats = all(3), texts = String(all(5)).split('\0')
      let float = 0
      for (const kind of varints(all(1))) {
        if (kind === 1) cells.push(null)
        else if (kind === 2) cells.push(whole.shift())
        else if (kind === 3) cells.push(floats.readDoubleLE(8 * float++))
        else if (kind === 4) cells.push(texts.shift())
        else throw new Error(`a cell of kind ${kind}`)
      }
    }
  }
  const found = []
  while (cells.length) found.push(Object.fromEntries(columns.map(name => [name, cells.shift()])))
  return found
}

started().then(ask => {
  ask(1, bytes(101, fs.readFileSync(trace)))
  ask(2)
  process.stdout.write(JSON.stringify(queries.map(query => rows(ask(3, bytes(103, bytes(1, Buffer.from(query))))))))
})
