"""A relay over a Mosquitto broker: a sender and a receiver here, and two of Mosquitto's own clients between them.

relay_mosquitto.py MESSAGE_BYTES SECONDS

Messages are lines: time, number, filling. All go with QoS 0, so the broker drops what a client does not take: how many
that are is told. Every sixteenth message says how long it took.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

SIZE, SECONDS = int(sys.argv[1]), float(sys.argv[2])
BATCH = 256


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    port, started = str(free_port()), []
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "conf")
        with open(config, "w") as file:
            file.write(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 100000\n")

        def start(*arguments, **pipes):
            started.append(subprocess.Popen(arguments, stderr=subprocess.DEVNULL, **pipes))
            return started[-1]

        try:
            start("mosquitto", "-c", config)
            for _ in range(100):
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", int(port))) == 0:
                        break
                time.sleep(0.05)
            receiver = start("mosquitto_sub", "-p", port, "-t", "down", stdout=subprocess.PIPE)
            passes = start("mosquitto_sub", "-p", port, "-t", "up", stdout=subprocess.PIPE)
            start("mosquitto_pub", "-p", port, "-t", "down", "-l", stdin=passes.stdout)
            time.sleep(0.5)
            sender = start("mosquitto_pub", "-p", port, "-t", "up", "-l", stdin=subprocess.PIPE)
            measure(sender, receiver)
        finally:
            for one in started:
                one.kill()
                one.wait()


def measure(sender, receiver):
    state = {"came": 0, "last": time.monotonic(), "latencies": [], "is_ordered": True}

    def take():
        number_before = -1
        for line in receiver.stdout:
            state["came"] += 1
            state["last"] = time.monotonic()
            if state["came"] % 16 == 0:
                at, number = line.split(b" ", 2)[:2]
                state["latencies"].append((time.monotonic_ns() - int(at)) // 1000)
                state["is_ordered"] &= int(number) > number_before
                number_before = int(number)

    threading.Thread(target=take, daemon=True).start()
    filling = "x" * max(0, SIZE - 34)
    sent, begun = 0, time.monotonic()
    while time.monotonic() - begun < SECONDS:
        at = time.monotonic_ns()
        lines = "".join(f"{at:019d} {number:012d} {filling}\n" for number in range(sent, sent + BATCH))
        sender.stdin.write(lines.encode())
        sent += BATCH
    sender.stdin.close()
    while state["came"] < sent and time.monotonic() - state["last"] < 3:
        time.sleep(0.05)
    latencies = sorted(state["latencies"]) or [0]
    print(json.dumps({
        "engine": "mosquitto", "message_bytes": SIZE, "messages_per_s": round(state["came"] / (state["last"] - begun)),
        "latency_us_p50": latencies[len(latencies) // 2], "latency_us_p99": latencies[len(latencies) * 99 // 100],
        "lost": sent - state["came"], "is_ordered": state["is_ordered"],
    }))


main()
