import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.Supplier;
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
 * RIoTBench's ETL, STATS and PRED on Apache Storm, in one process, written from the published descriptions of RIoTBench
 * and of EdgeWise.
 *
 * java Riot FOLDER TOPOLOGY [option=value ...]
 *
 * FOLDER has the trace, its metadata, the models, and the golden results. The golden results are compared first; if they
 * differ, nothing is measured. Then, for each rate in turn, events are sent by a schedule, and the time from an event's
 * place in the schedule to the publishing of its results is measured for all of them. One line of JSON at the end.
 */
public final class Riot {
  /** The fields of the trace that are observed, in the order of a row, and how STATS calls them. */
  static final String[] OBSERVED = {"temperature", "humidity", "light", "dust", "airquality_raw"};
  static final String[] SHORT = {"temp", "humid", "light", "dust", "airq"};
  static final String[] ROW = {"timestamp", "source", "longitude", "latitude", "temperature", "humidity", "light", "dust",
    "airquality_raw", "location", "type"};
  static final String[] UNITS = {"timestamp", "string", "lon", "lat", "far", "per", "per", "per", "per", "string", "string"};
  static final float[][] RANGES = {{0.7f, 35.1f}, {20.3f, 69.1f}, {0f, 5153f}, {83.36f, 3322.67f}, {12f, 49f}};
  /** How many of the last valid values a missing one is filled from. */
  static final int INTERPOLATED = 5;
  static final int AVERAGED = 5;
  static final int REGRESSED = 10;
  static final int INSERTED_AT_ONCE = 100;

  // What all bolts of this process share. Nothing here changes while events are sent.
  static byte[][] trace;
  static Map<String, String> metadata;
  static Tree tree;
  static Linear linear;
  /** The texts that were published, while they are compared with the golden results. */
  static volatile Queue<String> kept;

  // ---------------------------------------------------------------- what the tasks compute

  /** Kalman's filter of one value. */
  static final class Kalman {
    private float x;
    private float p = 30f;

    float next(float z) {
      p += 0.125f;
      float k = p / (p + 0.32f);
      x += k * (z - x);
      p *= 1 - k;
      return x;
    }
  }

  /** A line through the last ten values, and what it says of the next ten. */
  static final class Regression {
    private final double[] last = new double[REGRESSED];
    private long seen;

    /** Nothing until there was one value more than the window has. */
    float[] next(double value) {
      last[(int) (seen % REGRESSED)] = value;
      seen++;
      if (seen <= REGRESSED) {
        return null;
      }
      double meanY = 0;
      for (double y : last) {
        meanY += y;
      }
      meanY /= REGRESSED;
      // x counts arrivals, so the window is the x from seen - 9 to seen.
      double meanX = seen - (REGRESSED - 1) / 2.0;
      double above = 0;
      double below = 0;
      for (int back = 0; back < REGRESSED; back++) {
        double dx = seen - back - meanX;
        above += dx * (last[(int) ((seen - 1 - back) % REGRESSED)] - meanY);
        below += dx * dx;
      }
      double slope = above / below;
      float[] ahead = new float[REGRESSED];
      for (int h = 1; h <= REGRESSED; h++) {
        ahead[h - 1] = (float) (meanY + slope * (seen + h - meanX));
      }
      return ahead;
    }
  }

  /** The second moment by the sketch of Alon, Matias and Szegedy, ten items large. */
  static final class Moment {
    private final float[] items = new float[10];
    private final long[] counts = new long[10];
    private final Random random = new Random(1);
    private int distinct;
    private long seen;

    double next(float item) {
      seen++;
      int at = 0;
      while (at < distinct && items[at] != item) {
        at++;
      }
      if (at < distinct) {
        counts[at]++;
      } else {
        at = distinct < items.length ? distinct++ : random.nextInt(items.length);
        items[at] = item;
        counts[at] = 1;
      }
      long sum = 0;
      for (long count : counts) {
        sum += seen * (2 * count - 1);
      }
      return (double) sum / distinct;
    }
  }

  /** How many different texts there were, by the LogLog of Durand and Flajolet. */
  static final class Distinct {
    private final int bits;
    private final byte[] ranks;
    private final MessageDigest sha1;
    private long sum;

    Distinct(int bits) {
      this.bits = bits;
      ranks = new byte[1 << bits];
      try {
        sha1 = MessageDigest.getInstance("SHA-1");
      } catch (NoSuchAlgorithmException error) {
        throw new IllegalStateException(error);
      }
    }

    long next(String text) {
      byte[] digest = sha1.digest(text.getBytes(StandardCharsets.UTF_8));
      int hash = (digest[0] & 255) | (digest[1] & 255) << 8 | (digest[2] & 255) << 16 | (digest[3] & 255) << 24;
      int rest = hash >> bits;
      int rank = rest == 0 ? 31 : Integer.numberOfTrailingZeros(rest);
      int bucket = hash & (ranks.length - 1);
      if (rank > ranks[bucket]) {
        sum += rank - ranks[bucket];
        ranks[bucket] = (byte) rank;
      }
      return (long) (0.79402 * ranks.length * Math.pow(2, (double) sum / ranks.length));
    }
  }

  /** The mean of the last five valid values in the place of one that is not valid. */
  static final class Interpolation {
    private final float[] last = new float[INTERPOLATED];
    private int filled;
    private int next;

    float next(String value) {
      if (value.equals("null")) {
        float sum = 0;
        for (int i = 0; i < filled; i++) {
          sum += last[i];
        }
        return filled == 0 ? 0f : sum / filled;
      }
      float valid = Float.parseFloat(value);
      last[next] = valid;
      next = (next + 1) % INTERPOLATED;
      filled = Math.min(filled + 1, INTERPOLATED);
      return valid;
    }
  }

  /** A decision tree, as nodes that name their sons by number. */
  static final class Tree {
    private final int[] inputs;
    private final double[] limits;
    private final int[][] sons;
    private final String[] leaves;

    Tree(JsonNode model) {
      JsonNode nodes = model.get("nodes");
      inputs = new int[nodes.size()];
      limits = new double[nodes.size()];
      sons = new int[nodes.size()][];
      leaves = new String[nodes.size()];
      for (int i = 0; i < nodes.size(); i++) {
        JsonNode node = nodes.get(i);
        if (node.has("leaf")) {
          leaves[i] = node.get("leaf").asText();
        } else {
          inputs[i] = node.get("input").asInt();
          limits[i] = node.get("le").asDouble();
          sons[i] = new int[] {node.get("then").asInt(), node.get("else").asInt()};
        }
      }
    }

    String predict(double[] values) {
      int at = 0;
      while (leaves[at] == null) {
        at = sons[at][values[inputs[at]] <= limits[at] ? 0 : 1];
      }
      return leaves[at];
    }
  }

  /** A linear model: for each observed field its coefficient, 0 if it has none. */
  static final class Linear {
    private final double[] coefficients = new double[OBSERVED.length];
    private final double intercept;

    Linear(JsonNode model) {
      intercept = model.get("intercept").asDouble();
      for (int i = 0; i < model.get("inputs").size(); i++) {
        int place = Arrays.asList(OBSERVED).indexOf(model.get("inputs").get(i).asText());
        coefficients[place] = model.get("coefficients").get(i).asDouble();
      }
    }

    double predict(double[] values) {
      double sum = intercept;
      for (int i = 0; i < coefficients.length; i++) {
        sum += coefficients[i] * values[i];
      }
      return sum;
    }
  }

  /** A row of the trace: a SenML object with a base time and the fields of {@link #ROW} that it has. */
  static final class Row {
    private static final JsonFactory JSON = new JsonFactory();
    final String[] values = new String[9];

    Row(byte[] senml) {
      String name = null;
      String value = null;
      try (JsonParser parser = JSON.createParser(senml)) {
        for (JsonToken token = parser.nextToken(); token != null; token = parser.nextToken()) {
          if (token == JsonToken.END_OBJECT && name != null) {
            for (int i = 1; i < values.length; i++) {
              if (ROW[i].equals(name)) {
                values[i] = value;
              }
            }
            name = null;
          } else if (token == JsonToken.FIELD_NAME) {
            String field = parser.currentName();
            parser.nextToken();
            switch (field) {
              case "bt" -> values[0] = parser.getText();
              case "n" -> name = parser.getText();
              case "v", "sv" -> value = parser.getText();
              default -> { }
            }
          }
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    String source() {
      return values[1];
    }

    String observed(int i) {
      return values[4 + i];
    }
  }

  // ---------------------------------------------------------------- spout and bolts

  /** From when on events are sent, and how many a second; in bursts if there is a time between them. */
  record Plan(long startNs, double rate, long burstNs, long events) {
    long due(long nowNs) {
      long since = nowNs - startNs;
      if (since < 0) {
        return 0;
      }
      long until = burstNs == 0 ? since : since / burstNs * burstNs;
      return Math.min(events, (long) (until * rate / 1e9) + 1);
    }

    long at(long event) {
      long offset = (long) (event * 1e9 / rate);
      return startNs + (burstNs == 0 ? offset : (offset + burstNs - 1) / burstNs * burstNs);
    }
  }

  static volatile Plan plan;
  static volatile boolean isOpen;
  static volatile long emitted;
  /** Whether a message waits until the one before it is through, and how many the averages have seen. */
  static volatile boolean isOneByOne;
  static volatile long averaged;

  /** The trace round and round, by the plan. */
  static final class Trace extends BaseRichSpout {
    private transient SpoutOutputCollector out;
    private transient Plan mine;
    private long sent;
    private long number;

    @Override
    public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
      out = collector;
    }

    @Override
    public void nextTuple() {
      isOpen = true;
      Plan now = plan;
      if (now != mine) {
        mine = now;
        sent = 0;
      }
      if (now == null) {
        return;
      }
      long due = isOneByOne && Math.min(kept.size() / 2, averaged) < sent ? sent : now.due(System.nanoTime());
      // A few at once, for each call has its price.
      for (int i = 0; i < (isOneByOne ? 1 : 16) && sent < due; i++) {
        Long id = number++;
        byte[] line = trace[(int) (id % trace.length)];
        out.emit(new Values(id, now.at(sent++), line), id);
      }
      emitted = number;
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
      declarer.declare(new Fields("id", "at", "line"));
    }
  }

  /** What all bolts have in common. The first two fields are always the number of the message and its time. */
  abstract static class Bolt extends BaseRichBolt {
    private final String[] fields;
    private transient OutputCollector out;
    private transient Tuple in;

    Bolt(String... fields) {
      this.fields = new String[fields.length + 2];
      this.fields[0] = "id";
      this.fields[1] = "at";
      System.arraycopy(fields, 0, this.fields, 2, fields.length);
    }

    void open() {}

    abstract void take(Tuple tuple);

    final void emit(Object... rest) {
      Values values = new Values();
      values.ensureCapacity(rest.length + 2);
      values.add(in.getValue(0));
      values.add(in.getValue(1));
      Collections.addAll(values, rest);
      out.emit(in, values);
    }

    @Override
    public final void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector collector) {
      out = collector;
      open();
    }

    @Override
    public final void execute(Tuple tuple) {
      in = tuple;
      take(tuple);
      out.ack(tuple);
    }

    @Override
    public final void declareOutputFields(OutputFieldsDeclarer declarer) {
      declarer.declare(new Fields(fields));
    }
  }

  /** A bolt with a state for each key. */
  abstract static class Keyed<S> extends Bolt {
    private transient Map<String, S> states;

    Keyed(String... fields) {
      super(fields);
    }

    @Override
    final void open() {
      states = new HashMap<>();
    }

    final S state(String key, Supplier<S> make) {
      return states.computeIfAbsent(key, any -> make.get());
    }
  }

  /** A bolt that gives a field of a row another value. */
  abstract static class Observed<S> extends Keyed<S> {
    Observed() {
      super("sensor", "meta", "type", "value");
    }

    abstract String next(String sensor, String type, String value);

    @Override
    final void take(Tuple tuple) {
      String sensor = tuple.getString(2);
      String type = tuple.getString(4);
      emit(sensor, tuple.getString(3), type, next(sensor, type, tuple.getString(5)));
    }
  }

  /** A bolt that says something of each field of a row, or nothing. */
  abstract static class Analytic<S> extends Keyed<S> {
    Analytic() {
      super("text");
    }

    abstract String next(String sensor, String type, String value);

    @Override
    final void take(Tuple tuple) {
      String type = tuple.getString(4);
      String result = next(tuple.getString(2), type, tuple.getString(5));
      if (result != null) {
        emit(tuple.getString(3) + ";" + type + result);
      }
    }
  }

  /** ETL: a tuple for each field that is observed, the sensor's name last. */
  static final class ParseFields extends Bolt {
    ParseFields() {
      super("sensor", "meta", "type", "value");
    }

    @Override
    void take(Tuple tuple) {
      Row row = new Row(tuple.getBinary(2));
      String meta = row.values[0] + "," + row.values[2] + "," + row.values[3];
      for (int i = 0; i < OBSERVED.length; i++) {
        emit(row.source(), meta, OBSERVED[i], row.observed(i));
      }
      emit(row.source(), meta, "source", row.source());
    }
  }

  static final class Range extends Observed<float[]> {
    @Override
    String next(String sensor, String type, String value) {
      int place = Arrays.asList(OBSERVED).indexOf(type);
      if (place < 0) {
        return value;
      }
      float number = Float.parseFloat(value);
      return number < RANGES[place][0] || number > RANGES[place][1] ? "null" : value;
    }
  }

  /** A sensor that the metadata does not know has no value. STATS asks of no field, so all pass. */
  static final class Member extends Observed<Void> {
    @Override
    String next(String sensor, String type, String value) {
      return type.equals("source") && !metadata.containsKey(value) ? "null" : value;
    }
  }

  static final class Interpolate extends Observed<Interpolation> {
    @Override
    String next(String sensor, String type, String value) {
      return type.equals("source") ? "0.0" : Float.toString(state(sensor + type, Interpolation::new).next(value));
    }
  }

  /** The fields of one message become a row again. */
  static final class Join extends Bolt {
    private transient Map<Long, String[]> parts;

    Join() {
      super("row");
    }

    @Override
    void open() {
      parts = new HashMap<>();
    }

    @Override
    void take(Tuple tuple) {
      Long id = tuple.getLong(0);
      // The last place counts what is there.
      String[] row = parts.computeIfAbsent(id, key -> new String[OBSERVED.length + 1]);
      String type = tuple.getString(4);
      int place = Arrays.asList(OBSERVED).indexOf(type);
      row[place < 0 ? OBSERVED.length : place] = tuple.getString(5);
      for (String part : row) {
        if (part == null) {
          return;
        }
      }
      parts.remove(id);
      String meta = tuple.getString(3);
      int comma = meta.indexOf(',');
      StringBuilder line = new StringBuilder(128);
      line.append(meta, 0, comma).append(',').append(tuple.getString(2)).append(meta, comma, meta.length());
      for (int i = 0; i < OBSERVED.length; i++) {
        line.append(',').append(row[i]);
      }
      emit(line.toString());
    }
  }

  static final class Annotate extends Bolt {
    Annotate() {
      super("row");
    }

    @Override
    void take(Tuple tuple) {
      String row = tuple.getString(2);
      int from = row.indexOf(',') + 1;
      String found = metadata.get(row.substring(from, row.indexOf(',', from)));
      if (found != null) {
        emit(row + "," + found);
      }
    }
  }

  static final class ToSenml extends Bolt {
    ToSenml() {
      super("text");
    }

    @Override
    void take(Tuple tuple) {
      String[] values = tuple.getString(2).split(",");
      StringBuilder text = new StringBuilder(512);
      text.append("{\"bt\":").append(values[0]).append(",\"e\":[");
      for (int i = 1; i < values.length; i++) {
        boolean isText = i == 1 || i > 8;
        text.append(i == 1 ? "" : ",").append("{\"n\":\"").append(ROW[i]).append("\",\"u\":\"").append(UNITS[i])
            .append(isText ? "\",\"sv\":\"" : "\",\"v\":\"").append(values[i]).append("\"}");
      }
      emit(text.append("]}").toString());
    }
  }

  /** The end of a topology: what leaves it is counted, and the time that it took. */
  abstract static class End extends Bolt {
    private transient Histogram histogram;

    @Override
    void open() {
      histogram = Histogram.registered();
    }

    final void count(Tuple tuple, String text) {
      Queue<String> queue = kept;
      if (queue != null) {
        queue.add(text);
      }
      histogram.add(System.nanoTime() - tuple.getLong(1));
    }
  }

  /** Rows are handed over a hundred at a time, to nobody. */
  static final class Insert extends End {
    private transient List<String> rows;
    private long bytes;

    @Override
    void take(Tuple tuple) {
      if (rows == null) {
        rows = new ArrayList<>();
      }
      rows.add(tuple.getString(2));
      count(tuple, tuple.getString(2));
      if (rows.size() == INSERTED_AT_ONCE) {
        bytes += String.join("\n", rows).length();
        rows.clear();
      }
    }
  }

  /** The text is there as a broker would be given it, and goes nowhere. */
  static final class Publish extends End {
    private long bytes;

    @Override
    void take(Tuple tuple) {
      String text = tuple.getString(2);
      bytes += text.getBytes(StandardCharsets.UTF_8).length;
      count(tuple, text);
    }
  }

  /** STATS: a tuple for each field that is observed. */
  static final class ParseProject extends Bolt {
    ParseProject() {
      super("sensor", "meta", "type", "value");
    }

    @Override
    void take(Tuple tuple) {
      Row row = new Row(tuple.getBinary(2));
      String meta = tuple.getLong(0) + "," + row.values[0] + "," + row.source() + "," + row.values[2] + "," + row.values[3];
      for (int i = 0; i < OBSERVED.length; i++) {
        emit(row.source(), meta, SHORT[i], row.observed(i));
      }
    }
  }

  static final class Smooth extends Observed<Kalman> {
    @Override
    String next(String sensor, String type, String value) {
      return Float.toString(state(sensor + type, Kalman::new).next(Float.parseFloat(value)));
    }
  }

  static final class Forecast extends Analytic<Regression> {
    @Override
    String next(String sensor, String type, String value) {
      float[] ahead = state(sensor + type, Regression::new).next(Float.parseFloat(value));
      if (ahead == null) {
        return null;
      }
      StringBuilder text = new StringBuilder(160).append("-SLR-");
      for (float one : ahead) {
        text.append(one).append('#');
      }
      return text.toString();
    }
  }

  static final class SecondMoment extends Analytic<Moment> {
    @Override
    String next(String sensor, String type, String value) {
      return "-SOM-" + state(sensor + type, Moment::new).next(Float.parseFloat(value));
    }
  }

  static final class DistinctCount extends Analytic<Distinct> {
    @Override
    String next(String sensor, String type, String value) {
      return "-DAC-" + state(type, () -> new Distinct(10)).next(sensor);
    }
  }

  /** PRED: the row in two texts. */
  static final class ParseRow extends Bolt {
    ParseRow() {
      super("sensor", "meta", "values");
    }

    @Override
    void take(Tuple tuple) {
      Row row = new Row(tuple.getBinary(2));
      String meta = row.values[0] + "," + row.source() + "," + row.values[2] + "," + row.values[3];
      emit(row.source(), meta, String.join(",", Arrays.asList(row.values).subList(4, 9)));
    }
  }

  static double[] numbers(String values) {
    String[] texts = values.split(",");
    double[] numbers = new double[texts.length];
    for (int i = 0; i < texts.length; i++) {
      numbers[i] = Double.parseDouble(texts[i]);
    }
    return numbers;
  }

  static String head(Tuple tuple, String task) {
    return tuple.getLong(0) + "," + tuple.getString(3) + "," + task + ",obsVal:" + tuple.getString(4);
  }

  static final class Classify extends Bolt {
    Classify() {
      super("text");
    }

    @Override
    void take(Tuple tuple) {
      emit(head(tuple, "DTC") + ",RES:" + tree.predict(numbers(tuple.getString(4))));
    }
  }

  static final class Predict extends Bolt {
    Predict() {
      super("text", "value", "predicted");
    }

    @Override
    void take(Tuple tuple) {
      double[] values = numbers(tuple.getString(4));
      emit(head(tuple, "MLR"), values[4], linear.predict(values));
    }
  }

  /** The mean of each five values of a sensor. */
  static final class Average extends Keyed<double[]> {
    Average() {
      super("average");
    }

    @Override
    void take(Tuple tuple) {
      double[] state = state(tuple.getString(2), () -> new double[2]);
      state[0] += numbers(tuple.getString(4))[4];
      state[1] += 1;
      if (state[1] == AVERAGED) {
        emit(state[0] / AVERAGED);
        state[0] = 0;
        state[1] = 0;
      }
      averaged++;
    }
  }

  /** The error of a prediction, relative to the last mean of whichever sensor. */
  static final class Errors extends Bolt {
    private double average;

    Errors() {
      super("text");
    }

    @Override
    void take(Tuple tuple) {
      if (tuple.getSourceComponent().equals("average")) {
        average = tuple.getDouble(2);
        return;
      }
      double predicted = tuple.getDouble(4);
      double error = (tuple.getDouble(3) - predicted) / average;
      emit(tuple.getString(2) + ",RES:" + predicted + ",ERROR:" + error);
    }
  }

  /** The topologies as EdgeWise has them, with its numbers of instances. While results are compared, Parse has one. */
  static TopologyBuilder topology(String name, boolean isGolden) {
    TopologyBuilder t = new TopologyBuilder();
    t.setSpout("trace", new Trace());
    Fields key = new Fields("sensor", "type");
    switch (name) {
      case "etl" -> {
        t.setBolt("parse", new ParseFields()).shuffleGrouping("trace");
        t.setBolt("range", new Range()).shuffleGrouping("parse");
        t.setBolt("member", new Member()).shuffleGrouping("range");
        t.setBolt("interpolate", new Interpolate()).shuffleGrouping("member");
        t.setBolt("join", new Join()).fieldsGrouping("interpolate", new Fields("id"));
        t.setBolt("annotate", new Annotate()).shuffleGrouping("join");
        t.setBolt("insert", new Insert()).shuffleGrouping("annotate");
        t.setBolt("senml", new ToSenml()).shuffleGrouping("annotate");
        t.setBolt("publish", new Publish(), 2).shuffleGrouping("senml");
      }
      case "stats" -> {
        t.setBolt("parse", new ParseProject()).shuffleGrouping("trace");
        t.setBolt("member", new Member()).fieldsGrouping("parse", new Fields("type"));
        t.setBolt("kalman", new Smooth()).fieldsGrouping("member", key);
        t.setBolt("regression", new Forecast()).fieldsGrouping("kalman", key);
        t.setBolt("moment", new SecondMoment()).fieldsGrouping("member", key);
        t.setBolt("distinct", new DistinctCount()).fieldsGrouping("member", new Fields("type"));
        t.setBolt("publish", new Publish(), 3).shuffleGrouping("regression").shuffleGrouping("moment")
            .shuffleGrouping("distinct");
      }
      case "pred" -> {
        t.setBolt("parse", new ParseRow(), isGolden ? 1 : 2).shuffleGrouping("trace");
        t.setBolt("classify", new Classify()).shuffleGrouping("parse");
        t.setBolt("predict", new Predict()).shuffleGrouping("parse");
        t.setBolt("average", new Average()).shuffleGrouping("parse");
        t.setBolt("errors", new Errors()).shuffleGrouping("predict").shuffleGrouping("average");
        t.setBolt("publish", new Publish(), 3).shuffleGrouping("classify").shuffleGrouping("errors");
      }
      default -> throw new IllegalArgumentException("the topologies are etl, stats and pred, and not " + name);
    }
    return t;
  }

  // ---------------------------------------------------------------- golden results

  static void golden(String name, Path folder) throws IOException {
    switch (name) {
      case "etl" -> {
        List<String> expected = Files.readAllLines(folder.resolve("golden_etl.csv"));
        List<String> rows = new ArrayList<>(kept.stream().filter(text -> !text.startsWith("{")).toList());
        Collections.sort(expected);
        Collections.sort(rows);
        for (int i = 0; i < Math.max(rows.size(), expected.size()); i++) {
          String given = i < rows.size() ? rows.get(i) : "nothing";
          String right = i < expected.size() ? expected.get(i) : "nothing";
          check(given.equals(right), "a row of ETL: " + given + "\n  where golden is " + right);
        }
        check(kept.size() == 2 * trace.length, "ETL published " + kept.size() + " texts");
      }
      case "stats" -> {
        long[] counts = new long[3];
        for (String text : kept) {
          counts[text.contains("-SLR-") ? 0 : text.contains("-SOM-") ? 1 : 2]++;
        }
        check(Arrays.equals(counts, new long[] {60_600, 100_000, 100_000}), "counts of STATS: " + Arrays.toString(counts));
        goldenTasks();
      }
      default -> {
        List<String> expected = Files.readAllLines(folder.resolve("golden_pred.csv"));
        List<String> classes = List.of("BAD", "GOOD", "VERYGOOD");
        long finite = 0;
        long classified = 0;
        double sum = 0;
        for (String text : kept) {
          String[] row = expected.get(1 + (int) (Long.parseLong(text.substring(0, text.indexOf(','))) % trace.length)).split(",");
          String result = text.substring(text.indexOf("RES:") + 4);
          if (text.contains(",DTC,")) {
            classified++;
            check(classes.indexOf(result) == Integer.parseInt(row[2]), "a class of PRED: " + text);
          } else {
            int comma = result.indexOf(',');
            double predicted = Double.parseDouble(result.substring(0, comma));
            check(Math.abs(predicted - Double.parseDouble(row[3])) < 1e-5, "a value of PRED: " + text);
            double error = Double.parseDouble(result.substring(result.indexOf(':') + 1));
            if (Double.isFinite(error)) {
              finite++;
              sum += Math.abs(error);
            }
          }
        }
        // Storm gives no order to the mean and the prediction of one message either, so errors are compared in sum.
        check(classified == 20_000 && kept.size() == 40_000, "PRED published " + kept.size() + " texts");
        check(Math.abs(finite - 18_931) <= 1, finite + " finite errors of PRED, not 18,931");
        check(Math.abs(sum / finite - 0.569014) < 0.01, "the mean error of PRED is " + sum / finite);
      }
    }
    System.err.println(name + ": golden");
  }

  /** What single tasks of STATS give over the temperatures of the trace, all as of one sensor. */
  static void goldenTasks() {
    Kalman kalman = new Kalman();
    Regression regression = new Regression();
    Distinct five = new Distinct(5);
    Distinct ten = new Distinct(10);
    List<Float> smooth = new ArrayList<>();
    List<float[]> ahead = new ArrayList<>();
    long counted = 0;
    for (byte[] line : trace) {
      Row row = new Row(line);
      smooth.add(kalman.next(Float.parseFloat(row.observed(0))));
      float[] next = regression.next(smooth.get(smooth.size() - 1));
      if (next != null) {
        ahead.add(next);
      }
      counted = five.next(row.source()) * 10_000 + ten.next(row.source());
    }
    float[] golden = {7.915914f, 7.674746f, 19.310387f, 15.741342f, 24.736078f};
    for (int i = 0; i < golden.length; i++) {
      check(Math.abs(smooth.get(i) - golden[i]) < 1e-4, "Kalman value " + i + ": " + smooth.get(i));
    }
    check(Math.abs(smooth.get(999) - 13.026179f) < 1e-4, "Kalman value 999: " + smooth.get(999));
    check(ahead.size() == 990, "there were " + ahead.size() + " forecasts");
    float[][] forecasts = {{23.21301f, 23.91656f, 24.62011f}, {15.39636f, 15.19852f, 15.00068f}};
    for (int i = 0; i < 6; i++) {
      float one = ahead.get(i / 3 * 989)[i % 3];
      check(Math.abs(one - forecasts[i / 3][i % 3]) < 1e-3, "forecast " + i + ": " + one);
    }
    check(counted == 626 * 10_000 + 1259, "different sensors by 5 and 10 bits: " + counted);
  }

  static void check(boolean holds, String what) {
    if (!holds) {
      System.err.println("not golden: " + what);
      System.exit(1);
    }
  }

  // ---------------------------------------------------------------- measuring

  /** Times in buckets of less than two percent. One thread adds, another reads. */
  static final class Histogram {
    private static final int SUB = 64;
    private static final List<Histogram> ALL = new CopyOnWriteArrayList<>();
    private final AtomicLongArray counts = new AtomicLongArray(SUB * 40);

    static Histogram registered() {
      Histogram histogram = new Histogram();
      ALL.add(histogram);
      return histogram;
    }

    void add(long ns) {
      long us = Math.max(ns / 1_000, 0);
      int shift = Math.max(0, 64 - Long.numberOfLeadingZeros(us) - 7);
      int bucket = Math.min(shift * SUB + (int) (us >> shift), counts.length() - 1);
      counts.lazySet(bucket, counts.get(bucket) + 1);
    }

    static long upper(int bucket) {
      int shift = Math.max(0, bucket / SUB - 1);
      return ((long) (bucket - shift * SUB) << shift) + (1L << shift) - 1;
    }

    static long[] all() {
      long[] sum = new long[SUB * 40];
      for (Histogram one : ALL) {
        for (int i = 0; i < sum.length; i++) {
          sum[i] += one.counts.get(i);
        }
      }
      return sum;
    }

    static long quantile(long[] counts, double q) {
      long rank = (long) Math.ceil(q * Arrays.stream(counts).sum());
      for (int i = 0; i < counts.length; i++) {
        rank -= counts[i];
        if (rank <= 0) {
          return upper(i);
        }
      }
      return 0;
    }
  }

  record Point(double input, double sink, long p50, long p95, long p99, long max, double cpu, boolean sustained) {
    String json() {
      return String.format(Locale.ROOT, "\"input_per_s\":%.0f,\"sink_per_s\":%.0f,\"sink_per_input\":%.3f,\"latency_us_p50\":%d,"
          + "\"latency_us_p95\":%d,\"latency_us_p99\":%d,\"latency_us_max\":%d,\"cpu_us_per_event\":%.3f", input, sink,
          sink / Math.max(input, 1e-9), p50, p95, p99, max, cpu);
    }
  }

  static double seconds = 20;
  static double settle = 2;
  static long burstNs;
  static double boundUs;

  /** Processor time of the whole process so far, in seconds. */
  static double cpu() throws IOException {
    String stat = Files.readString(Path.of("/proc/self/stat"));
    String[] parts = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
    return (Long.parseLong(parts[11]) + Long.parseLong(parts[12])) / 100.0;
  }

  static Point point(double rate) throws Exception {
    plan = new Plan(System.nanoTime(), rate, burstNs, Long.MAX_VALUE);
    Thread.sleep((long) (settle * 1000));
    long[] before = Histogram.all();
    long emittedBefore = emitted;
    double cpuBefore = cpu();
    long begun = System.nanoTime();
    Thread.sleep((long) (seconds * 1000));
    long[] counts = Histogram.all();
    long events = emitted - emittedBefore;
    double elapsed = (System.nanoTime() - begun) / 1e9;
    double cpu = cpu() - cpuBefore;
    for (int i = 0; i < counts.length; i++) {
      counts[i] -= before[i];
    }
    plan = null;
    drain();
    long p99 = Histogram.quantile(counts, 0.99);
    double sink = Arrays.stream(counts).sum() / elapsed;
    // Latency is from the schedule, so a spout that lags behind it fails by the bound too, and by this at the latest.
    boolean sustained = events >= 0.99 * rate * elapsed && p99 <= boundUs && sink > 0;
    Point point = new Point(rate, sink, Histogram.quantile(counts, 0.5), Histogram.quantile(counts, 0.95), p99,
        Histogram.quantile(counts, 1), cpu * 1e6 / Math.max(events, 1), sustained);
    System.err.printf(Locale.ROOT, "  %.0f/s: sink %.0f/s, p50 %d us, p99 %d us, %.1f us of processor time an event: %s%n", rate,
        sink, point.p50, point.p99, point.cpu, sustained ? "sustained" : "not sustained");
    return point;
  }

  /** Waits until nothing has come out for two seconds. */
  static void drain() throws InterruptedException {
    long last = -1;
    for (int i = 0; i < 60; i++) {
      Thread.sleep(2000);
      long now = Arrays.stream(Histogram.all()).sum();
      if (now == last) {
        return;
      }
      last = now;
    }
    throw new IllegalStateException("results still come after two minutes");
  }

  static String option(Map<String, String> options, String name, String otherwise) {
    String given = options.remove(name);
    return given == null ? otherwise : given;
  }

  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]);
    String name = arguments[1];
    Map<String, String> options = new HashMap<>();
    for (String argument : Arrays.copyOfRange(arguments, 2, arguments.length)) {
      int equals = argument.indexOf('=');
      options.put(argument.substring(0, equals), argument.substring(equals + 1));
    }
    trace = Files.readAllLines(folder.resolve("sys.senml")).stream()
        .map(line -> line.substring(line.indexOf(',') + 1).getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
    metadata = new HashMap<>();
    for (String line : Files.readAllLines(folder.resolve("city-metadata.txt"))) {
      int colon = line.indexOf(':');
      metadata.put(line.substring(0, colon), line.substring(colon + 1));
    }
    ObjectMapper mapper = new ObjectMapper();
    tree = new Tree(mapper.readTree(folder.resolve("air_class.json").toFile()));
    linear = new Linear(mapper.readTree(folder.resolve("air_quality.json").toFile()));

    boolean isGolden = option(options, "golden", "false").equals("true");
    int ackers = Integer.parseInt(option(options, "ackers", "0"));
    int batch = Integer.parseInt(option(options, "batch", "1"));
    int cpus = Integer.parseInt(option(options, "cpus", "1"));
    double warmUp = Double.parseDouble(option(options, "warm-up", "60"));
    seconds = Double.parseDouble(option(options, "seconds", "20"));
    settle = Double.parseDouble(option(options, "settle", "2"));
    burstNs = Long.parseLong(option(options, "burst-ms", "0")) * 1_000_000;
    boundUs = Double.parseDouble(option(options, "bound-ms", name.equals("etl") ? "50" : "100")) * 1_000;
    double first = Double.parseDouble(option(options, "first", "1000"));
    double most = Double.parseDouble(option(options, "most", "10000000"));
    double precision = Double.parseDouble(option(options, "precision", "0.05"));
    int repeats = Integer.parseInt(option(options, "repeats", "3"));
    String rates = option(options, "rates", "");
    if (!options.isEmpty()) {
      throw new IllegalArgumentException("no such options: " + options.keySet());
    }

    Config config = new Config();
    config.put("topology.workers", 1);
    config.put("topology.acker.executors", ackers);
    config.put("topology.max.spout.pending", ackers > 0 && !isGolden ? 1000 : null);
    config.put("topology.stats.sample.rate", 0.05);
    config.put("topology.producer.batch.size", batch);
    config.put("topology.eventlogger.executors", 0);
    LocalCluster cluster = new LocalCluster();
    cluster.submitTopology(name, config, topology(name, isGolden).createTopology());
    for (int i = 0; !isOpen; i++) {
      if (i > 1200) {
        throw new IllegalStateException("the topology does not begin");
      }
      Thread.sleep(100);
    }

    if (isGolden) {
      kept = new LinkedBlockingQueue<>();
      // A prediction and the mean that it is compared with go different ways, so their order is held by this alone.
      isOneByOne = name.equals("pred");
      int passes = name.equals("etl") ? 1 : 20;
      plan = new Plan(System.nanoTime(), 5000, 0, (long) passes * trace.length);
      int texts = name.equals("stats") ? 260_600 : 2 * passes * trace.length;
      for (int i = 0; i < 3000 && kept.size() < texts; i++) {
        Thread.sleep(100);
      }
      drain();
      golden(name, folder);
      System.exit(0);
    }

    // What the cluster itself takes, for whoever wants to subtract it.
    double idle = cpu();
    Thread.sleep(3000);
    idle = (cpu() - idle) / 3;
    System.err.printf(Locale.ROOT, "%s, ackers %d, batch %d: warm-up of %.0f s%n", name, ackers, batch, warmUp);
    double warm = first > 0 || rates.isEmpty() ? Math.max(first, 1) : Double.parseDouble(rates.split(",")[0]);
    plan = new Plan(System.nanoTime(), warm, burstNs, Long.MAX_VALUE);
    Thread.sleep((long) (warmUp * 1000));
    plan = null;
    drain();
    List<Point> points = new ArrayList<>();
    for (String rate : rates.split(",")) {
      if (!rate.isEmpty()) {
        points.add(point(Double.parseDouble(rate)));
      }
    }
    // Doubles while the bound holds, then halves what is between.
    double good = 0;
    double bad = 0;
    double next = first;
    while (first > 0) {
      Point done = point(next);
      points.add(done);
      // One disturbance is no limit: what fails is tried again.
      if (!done.sustained) {
        done = point(next);
        points.add(done);
      }
      if (done.sustained) {
        good = next;
      } else {
        bad = next;
      }
      if (bad == 0 ? good >= most : bad <= 10 || bad - good <= bad * precision) {
        break;
      }
      next = bad == 0 ? Math.min(good * 2, most) : Math.floor(good + (bad - good) / 2);
    }
    // The last rate that holds, some times over: the median by latency is what counts.
    List<Point> last = new ArrayList<>();
    Point saturation = null;
    // If it held by chance, so much less is tried.
    for (int step = 0; step <= 8 && good > 0 && repeats > 0 && (saturation == null || !saturation.sustained); step++) {
      last.clear();
      for (int i = 0; i < repeats; i++) {
        last.add(point(good * Math.pow(0.95, step)));
      }
      last.sort((a, b) -> Long.compare(a.p99, b.p99));
      saturation = last.get(last.size() / 2);
    }
    StringBuilder line = new StringBuilder();
    line.append(String.format(Locale.ROOT, "{\"engine\":\"storm\",\"topology\":\"%s\",\"ackers\":%d,\"batch\":%d,\"cpus\":%d,"
        + "\"bound_ms\":%.0f,\"burst_ms\":%d,\"warm_up_s\":%.0f,\"seconds\":%.0f,\"idle_cpu_us_per_s\":%.0f", name, ackers, batch,
        cpus, boundUs / 1000, burstNs / 1_000_000, warmUp, seconds, idle * 1e6));
    if (saturation != null) {
      line.append(",").append(saturation.json());
    }
    line.append(",\"is_saturation\":").append(saturation != null).append(",\"points\":[");
    for (int i = 0; i < points.size(); i++) {
      line.append(i == 0 ? "{" : ",{").append(points.get(i).json()).append(",\"is_sustained\":")
          .append(points.get(i).sustained).append("}");
    }
    System.out.println(line.append("]}"));
    System.exit(0);
  }
}
