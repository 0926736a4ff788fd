import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * A relay of three stages on Apache Storm, in one process, written from the description of Neptune's experiment: a spout
 * sends messages as fast as they are taken, a bolt passes them on, another one checks them.
 *
 * java Relay [message-bytes=50 ackers=0 batch=100 warm-up=30 seconds=5]
 *
 * One line of JSON at the end. What a message is: its time, its number, and a filling of random bytes.
 */
public final class Relay {
  static final int FILLINGS = 1024;

  static volatile boolean isSending = true;
  static volatile boolean isCounting;
  static volatile long sent;
  static volatile long came;
  static volatile String problem;
  /** Microseconds of each message while they are counted, in steps of a thirty-second of a power of two. */
  static final long[] latencies = new long[64 * 32];
  static byte[][] fillings;

  static final class Sender extends BaseRichSpout {
    private transient SpoutOutputCollector out;
    private transient boolean isFollowed;

    @Override
    public void open(Map<String, Object> config, TopologyContext context, SpoutOutputCollector collector) {
      out = collector;
      isFollowed = ((Number) config.get("topology.acker.executors")).intValue() > 0;
    }

    @Override
    public void nextTuple() {
      if (!isSending) {
        return;
      }
      byte[] filling = fillings[(int) (sent % FILLINGS)];
      byte[] message = ByteBuffer.allocate(16 + filling.length).putLong(System.nanoTime()).putLong(sent).put(filling).array();
      if (isFollowed) {
        out.emit(new Values(message), sent);
      } else {
        out.emit(new Values(message));
      }
      sent++;
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
      declarer.declare(new Fields("message"));
    }
  }

  static final class Pass extends BaseRichBolt {
    private transient OutputCollector out;

    @Override
    public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
      out = collector;
    }

    @Override
    public void execute(Tuple tuple) {
      out.emit(tuple, new Values(tuple.getBinary(0)));
      out.ack(tuple);
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
      declarer.declare(new Fields("message"));
    }
  }

  static final class Check extends BaseRichBolt {
    private transient OutputCollector out;

    @Override
    public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
      out = collector;
    }

    @Override
    public void execute(Tuple tuple) {
      byte[] message = tuple.getBinary(0);
      ByteBuffer head = ByteBuffer.wrap(message);
      long us = (System.nanoTime() - head.getLong()) / 1000;
      long number = head.getLong();
      byte[] filling = fillings[(int) (came % FILLINGS)];
      if (number != came) {
        problem = "message " + number + " came where " + came + " was next";
      } else if (!Arrays.equals(message, 16, message.length, filling, 0, filling.length)) {
        problem = "message " + number + " has changed";
      }
      came++;
      if (isCounting) {
        latencies[step(us)]++;
      }
      out.ack(tuple);
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
    }
  }

  static int step(long us) {
    int power = 63 - Long.numberOfLeadingZeros(Math.max(us, 1));
    return power * 32 + (int) (power >= 5 ? (us >> (power - 5)) & 31 : (us << (5 - power)) & 31);
  }

  static long percentile(double percent) {
    long left = (long) Math.ceil(Arrays.stream(latencies).sum() * percent / 100);
    for (int at = 0; at < latencies.length; at++) {
      left -= latencies[at];
      if (left <= 0) {
        return (long) ((1L << (at / 32)) * (1 + at % 32 / 32.0));
      }
    }
    return 0;
  }

  /** Seconds of processor time, and context switches, of this process so far. */
  static double[] used() throws Exception {
    String stat = Files.readString(Path.of("/proc/self/stat"));
    String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
    long switches = 0;
    try (var tasks = Files.list(Path.of("/proc/self/task"))) {
      for (Path task : (Iterable<Path>) tasks::iterator) {
        for (String line : Files.readAllLines(task.resolve("status"))) {
          if (line.contains("ctxt_switches")) {
            switches += Long.parseLong(line.substring(line.indexOf(':') + 1).trim());
          }
        }
      }
    }
    return new double[] {(Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0, switches};
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (String argument : arguments) {
      options.put(argument.substring(0, argument.indexOf('=')), argument.substring(argument.indexOf('=') + 1));
    }
    int bytes = Integer.parseInt(options.getOrDefault("message-bytes", "50"));
    int ackers = Integer.parseInt(options.getOrDefault("ackers", "0"));
    int batch = Integer.parseInt(options.getOrDefault("batch", "100"));
    double warmUp = Double.parseDouble(options.getOrDefault("warm-up", "30"));
    double seconds = Double.parseDouble(options.getOrDefault("seconds", "5"));
    fillings = new byte[FILLINGS][Math.max(bytes - 16, 0)];
    var random = new java.util.Random(1);
    for (byte[] filling : fillings) {
      random.nextBytes(filling);
    }
    Config config = new Config();
    config.put("topology.workers", 1);
    config.put("topology.acker.executors", ackers);
    config.put("topology.max.spout.pending", ackers > 0 ? 1000 : null);
    config.put("topology.stats.sample.rate", 0.05);
    config.put("topology.producer.batch.size", batch);
    config.put("topology.eventlogger.executors", 0);
    TopologyBuilder topology = new TopologyBuilder();
    topology.setSpout("sender", new Sender(), 1);
    topology.setBolt("relay", new Pass(), 1).shuffleGrouping("sender");
    topology.setBolt("receiver", new Check(), 1).shuffleGrouping("relay");
    LocalCluster cluster = new LocalCluster();
    cluster.submitTopology("relay", config, topology.createTopology());
    for (int i = 0; came == 0; i++) {
      if (i > 1200) {
        throw new IllegalStateException("the topology does not begin");
      }
      Thread.sleep(100);
    }
    Thread.sleep((long) (warmUp * 1000));
    long before = came;
    double[] used = used();
    long begun = System.nanoTime();
    isCounting = true;
    Thread.sleep((long) (seconds * 1000));
    isCounting = false;
    long messages = came - before;
    double elapsed = (System.nanoTime() - begun) / 1e9;
    double[] then = used();
    isSending = false;
    for (int i = 0; came < sent && i < 600; i++) {
      Thread.sleep(100);
    }
    if (problem != null) {
      throw new IllegalStateException(problem);
    }
    System.out.printf(Locale.ROOT, "{\"engine\":\"storm, in process\",\"message_bytes\":%d,\"ackers\":%d,\"batch\":%d,"
        + "\"messages_per_s\":%.0f,\"latency_us_p50\":%d,\"latency_us_p99\":%d,\"cpu_us_per_message\":%.3f,"
        + "\"context_switches_per_million\":%.0f,\"lost\":%d}%n", bytes, ackers, batch, messages / elapsed, percentile(50),
        percentile(99), (then[0] - used[0]) * 1e6 / messages, (then[1] - used[1]) * 1e6 / messages, sent - came);
    System.exit(0);
  }
}
