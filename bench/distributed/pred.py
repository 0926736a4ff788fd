"""Publishes RIoTBench's trace to MQTT, takes PRED's results, looks for the highest rate within the latency bound.

Arguments: broker, trace, file of golden results (made by the run of one server), servers, run, per cent of a core of
each, seconds for each rate, bound in milliseconds. Prints a line of JSON; progress goes to the error output.
"""
import json, os, re, select, socket, sys, time, zlib

host, trace, golden_file = sys.argv[1:4]
servers, run, core_percent, seconds, bound_ms = map(int, sys.argv[4:9])
LAG_MAX_S = 10  # how long results may come after the last event


def field(text):
    return len(text).to_bytes(2, "big") + text


def packet(kind, body):
    length, left = b"", len(body)
    while True:
        length += bytes([left & 127 | (128 if left > 127 else 0)])
        left >>= 7
        if not left:
            return bytes([kind]) + length + body


def connect(name):
    connection = socket.create_connection((host, 1883), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(packet(0x10, field(b"MQTT") + b"\x04\x02\x00\x00" + field(name)))
    if connection.recv(4)[3] != 0:
        sys.exit("the broker refuses the connection")
    return connection


class Results:
    """The texts of results with the microseconds that each took."""

    def __init__(self):
        self.connection = connect(b"results")
        self.connection.sendall(packet(0x82, b"\x00\x01" + field(b"results") + b"\x00"))
        self.left, self.count, self.latencies, self.texts = b"", 0, [], []
        self.keeps = False

    def take(self, wait_s):
        if not select.select([self.connection], [], [], wait_s)[0]:
            return
        data, now = self.left + self.connection.recv(1 << 20), time.time()
        at = 0
        while at + 2 <= len(data):
            length, shift, start = 0, 0, at + 1
            while start < len(data):
                byte = data[start]
                length, shift, start = length | (byte & 127) << shift, shift + 7, start + 1
                if byte < 128:
                    break
            else:
                break
            if start + length > len(data):
                break
            if data[at] & 0xF0 == 0x30:
                payload = data[start + 2 + int.from_bytes(data[start : start + 2], "big") : start + length]
                self.count += 1
                if self.keeps:
                    self.texts.append(json.loads(payload)["text"])
                elif self.count % 20 == 0:
                    due = self.begin + (int(NUMBER.search(payload)[1]) - self.first) / self.rate
                    self.latencies.append((now - due) * 1e3)
            at = start + length
        self.left = data[at:]


def templates():
    for line in open(trace):
        pack = json.loads(line.split(",", 1)[1])
        row = {record["n"]: record.get("sv", record.get("v")) for record in pack["e"]}
        row = {name: float(value) if name in NUMBERS else value for name, value in row.items()}
        row["sent"] = pack["bt"]
        half = zlib.crc32(row["source"].encode()) % 2 if servers == 4 else 0
        yield field(b"city/%d" % half), json.dumps(row)[:-1].encode()


NUMBER = re.compile(rb'"text":"(\d+),')
NUMBERS = {"temperature", "humidity", "light", "dust", "airquality_raw"}
READINGS = list(templates())
results, publisher = Results(), connect(b"trace")
number = 0


def offer(rate, events):
    """Sends so many events at this rate, each with the time at which it was due; returns whether all results came."""
    global number
    results.count, results.latencies, results.texts = 0, [], []
    begin, sent = time.time() + 0.01, 0
    results.begin, results.first, results.rate = begin, number, rate
    while sent < events:
        due = min(events, int((time.time() - begin) * rate))
        if due > sent:
            batch = []
            for i in range(sent, due):
                topic, row = READINGS[number % len(READINGS)]
                at = int((begin + i / rate) * 1e3)
                batch.append(packet(0x30, topic + row + b',"number":%d,"at":%d}' % (number, at)))
                number += 1
            publisher.sendall(b"".join(batch))
            sent = due
        results.take(0.001)
    end = time.time() + LAG_MAX_S
    while results.count < 2 * events and time.time() < end:
        results.take(0.05)
    return results.count == 2 * events


def texts():
    """Golden results without the sensor's running number, sorted; of four servers without the error."""
    return sorted(re.sub(r",ERROR:.*", "", text) if servers == 4 else text for text in results.texts)


results.keeps = True
if not offer(200, 2 * len(READINGS)):
    sys.exit(f"{results.count} results of {4 * len(READINGS)} came")
if servers == 1:
    json.dump(results.texts, open(golden_file, "w"))
elif os.path.exists(golden_file):
    golden = sorted(re.sub(r",ERROR:.*", "", text) if servers == 4 else text for text in json.load(open(golden_file)))
    if golden != texts():
        sys.exit("the results differ from those of one server")
else:
    sys.exit("one server has to be measured first: its results are what the others must give")
results.keeps = False


def percentile(part):
    latencies = sorted(results.latencies)
    return latencies[min(len(latencies) - 1, int(len(latencies) * part))] if latencies else float("inf")


def is_borne(rate):
    whole = offer(rate, rate * seconds)
    p50, p99 = percentile(0.5), percentile(0.99)
    said = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {results.count} results"
    print(f"  {servers} servers, {rate} events/s: {said}", file=sys.stderr)
    best = whole and p99 <= bound_ms
    if not whole:  # what still waits is not counted to the next rate
        quiet = time.time()
        while time.time() - quiet < 3:
            before = results.count
            results.take(0.1)
            quiet = time.time() if results.count > before else quiet
    return (p50, p99) if best else None


low, high, found = 0, None, None
rate = 500
for _ in range(14):
    measured = is_borne(rate)
    if measured:
        low, found = rate, measured
    else:
        high = rate
    if high and high - low <= max(50, low // 20):
        break
    rate = (low + high) // 2 if high else rate * 2
print(json.dumps({
    "topology": "pred", "servers": servers, "run": run, "core_percent": core_percent, "input_per_s": low,
    "sink_per_s": 2 * low,
    "latency_ms_p50": found and round(found[0], 1),
    "latency_ms_p99": found and round(found[1], 1),
}), flush=True)
