"""Averages of the last 60 seconds, each second, of the columns behind the time: `python3 golden.py < sample.csv`.

Windows begin at whole seconds, and those at both ends are there as far as the rows reach.
"""
import sys
from collections import defaultdict
from datetime import datetime, timezone

LENGTH_S = 60

windows = defaultdict(lambda: [0, 0, 0, 0])
for line in sys.stdin:
    time, *values = line.strip().split(",")
    # Whole seconds are enough, since windows begin at them.
    second = datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    second = int(second.timestamp())
    for start in range(second - LENGTH_S + 1, second + 1):
        window = windows[start]
        window[0] += 1
        for place, value in enumerate(values, 1):
            window[place] += int(value)

print("window_start_epoch_s,window_end_epoch_s,count,sum_mf01,sum_mf02,sum_mf03,avg_mf01,avg_mf02,avg_mf03")
for start, (count, *sums) in sorted(windows.items()):
    averages = [f"{total / count:.6f}" for total in sums]
    print(",".join(map(str, [start, start + LENGTH_S, count, *sums, *averages])))
