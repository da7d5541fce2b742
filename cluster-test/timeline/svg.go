package timeline

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// The drawing is cut into strips of a minute, one below the other. From the top, a strip has the
// faults, the acknowledgements of all servers together, the answers of each server, and the latency
// of the answers.
const (
	stripTime   = time.Minute
	bucketTime  = 200 * time.Millisecond
	stripWidth  = 1080.0
	labelWidth  = 84.0
	faultHeight = 20.0
	writeHeight = 34.0
	laneHeight  = 12.0
	delayHeight = 56.0
	axisHeight  = 18.0
	space       = 4.0
)

// bucket is a part of a strip.
type bucket struct {
	acked   int
	servers map[string]*answers
	took    []time.Duration // of the acknowledged writes
}

// answers are those of one server in a bucket.
type answers struct{ ok, failed int }

// buckets sorts the samples by when they ended.
func (r *Run) buckets() []bucket {
	all := make([]bucket, int(r.Length/bucketTime)+1)
	for _, s := range r.Samples {
		i := int(s.End / bucketTime)
		if i < 0 || i >= len(all) {
			continue
		}
		b := &all[i]
		if b.servers == nil {
			b.servers = make(map[string]*answers)
		}
		a := b.servers[s.Server]
		if a == nil {
			a = &answers{}
			b.servers[s.Server] = a
		}
		switch {
		case !s.OK:
			a.failed++
		case s.Aside:
			a.ok++
		default:
			a.ok++
			b.acked++
			b.took = append(b.took, s.End-s.Begin)
		}
	}
	return all
}

// drawing is an SVG while it is written.
type drawing struct {
	strings.Builder
	run     *Run
	servers []string
	all     []bucket
	usual   int // acknowledgements in a good bucket
	gaps    []time.Duration
}

// SVG draws the run.
func (r *Run) SVG() string {
	d := &drawing{run: r, servers: r.servers(), all: r.buckets(), gaps: r.Gaps()}
	var counts []int
	for _, b := range d.all {
		counts = append(counts, b.acked)
	}
	slices.Sort(counts)
	d.usual = max(1, counts[len(counts)*9/10])
	strips := int((r.Length + stripTime - 1) / stripTime)
	height := d.stripHeight() * float64(max(1, strips))
	d.printf(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" role="img" aria-label="faults and writes over time">`+"\n", px(labelWidth+stripWidth+8), px(height))
	for i := range strips {
		d.strip(time.Duration(i)*stripTime, float64(i)*d.stripHeight())
	}
	d.printf("</svg>\n")
	return d.String()
}

func (d *drawing) stripHeight() float64 {
	return faultHeight + writeHeight + float64(len(d.servers))*laneHeight + delayHeight + axisHeight + 7*space
}

func (d *drawing) printf(format string, args ...any) { fmt.Fprintf(&d.Builder, format, args...) }

func px(v float64) string {
	text := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(text, ".0")
}

// strip draws the time from one moment on, at a height.
func (d *drawing) strip(from time.Duration, top float64) {
	x := func(at time.Duration) float64 {
		return labelWidth + stripWidth*float64(min(max(at-from, 0), stripTime))/float64(stripTime)
	}
	faults := top + space
	writes := faults + faultHeight + space
	lanes := writes + writeHeight + space
	delays := lanes + float64(len(d.servers))*laneHeight + 2*space
	axis := delays + delayHeight
	d.label(faults+faultHeight*0.7, "faults", "")
	d.label(writes+writeHeight*0.6, "writes",
		fmt.Sprintf("acknowledged in each %v; the line is %d", bucketTime, d.usual))
	d.faults(from, x, faults, lanes)
	buckets := d.between(from)
	d.writes(buckets, x, writes)
	for i, s := range d.servers {
		d.lane(s, buckets, x, lanes+float64(i)*laneHeight)
	}
	d.delays(buckets, x, delays)
	for at := from; at <= from+stripTime; at += 5 * time.Second {
		d.printf(`<line class="tick" x1="%[1]s" x2="%[1]s" y1="%s" y2="%s"/>`, px(x(at)), px(faults), px(axis))
		if at < from+stripTime && (at-from)%(10*time.Second) == 0 {
			d.printf(`<text class="time" x="%s" y="%s">%s</text>`, px(x(at)), px(axis+12), clock(at))
		}
	}
	d.printf("\n")
}

// clock is minutes and seconds.
func clock(at time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(at.Minutes()), int(at.Seconds())%60)
}

func (d *drawing) label(y float64, text, title string) {
	d.printf(`<text class="label" x="%s" y="%s">%s`, px(labelWidth-8), px(y), html.EscapeString(text))
	if title != "" {
		d.printf(`<title>%s</title>`, html.EscapeString(title))
	}
	d.printf("</text>")
}

// placed is a bucket and when it begins.
type placed struct {
	*bucket
	at time.Duration
}

func (d *drawing) between(from time.Duration) (out []placed) {
	first := int(from / bucketTime)
	for i := first; i < min(len(d.all), first+int(stripTime/bucketTime)); i++ {
		out = append(out, placed{&d.all[i], time.Duration(i) * bucketTime})
	}
	return out
}

// faults draws bars with a number, which the list below the drawing explains, and shades the lanes
// of those that they met.
func (d *drawing) faults(from time.Duration, x func(time.Duration) float64, top, lanes float64) {
	const letter = 6.2 // width of one
	for i, s := range d.run.Spans {
		if s.Settled < from || s.Begin > from+stripTime {
			continue
		}
		title := html.EscapeString(
			fmt.Sprintf("%d %s: %s\non from %v to %v, all well at %v\nlongest time without a write %v", i+1, s.Kind,
				s.Note,
				s.Begin.Round(time.Millisecond), s.End.Round(time.Millisecond), s.Settled.Round(time.Millisecond),
				d.gaps[i].Round(time.Millisecond)))
		begin, end, settled := x(s.Begin), x(s.End), x(s.Settled)
		for k, server := range d.servers {
			if slices.Contains(s.Targets, server) {
				d.printf(`<rect class="met" x="%s" y="%s" width="%s" height="%s"/>`, px(begin),
					px(lanes+float64(k)*laneHeight), px(end-begin), px(laneHeight-1))
			}
		}
		d.printf(
			`<g><title>%s</title><rect class="mending" x="%s" y="%s" width="%s" height="%s"/><rect class="fault" x="%s" y="%s" width="%s" height="%s"/>`,
			title, px(end), px(top+faultHeight*0.7), px(max(0, settled-end)), px(faultHeight*0.3), px(begin), px(top),
			px(max(2, end-begin)), px(faultHeight))
		text := fmt.Sprintf("%d %s", i+1, s.Kind)
		room := int((settled - begin - 6) / letter)
		if n := []rune(text); len(n) > room {
			text = string(n[:max(0, min(room, len(n)))])
		}
		if s.Begin >= from && text != "" {
			d.printf(`<text class="name" x="%s" y="%s">%s</text>`, px(begin+3), px(top+13), html.EscapeString(text))
		}
		d.printf("</g>\n")
	}
}

// writes draws how many were acknowledged; where a client wanted to write all the time and none
// was, it says so in red.
func (d *drawing) writes(buckets []placed, x func(time.Duration) float64, top float64) {
	base := top + writeHeight
	var path strings.Builder
	for _, b := range buckets {
		if b.at >= d.run.Length {
			break
		}
		left, right := x(b.at), x(min(b.at+bucketTime, d.run.Length))
		if b.acked == 0 {
			if d.run.wanted(b.at, b.at+bucketTime) {
				d.printf(`<rect class="none" x="%s" y="%s" width="%s" height="%s"/>`, px(left), px(top), px(right-left),
					px(writeHeight))
			}
			continue
		}
		high := writeHeight * math.Min(1, 0.85*float64(b.acked)/float64(d.usual))
		fmt.Fprintf(&path, "M%s %sv-%sh%sv%sz", px(left), px(base), px(high), px(right-left), px(high))
	}
	if path.Len() > 0 {
		d.printf(`<path class="acked" d="%s"/>`, path.String())
	}
	d.printf(`<line class="usual" x1="%s" x2="%s" y1="%[3]s" y2="%[3]s"/>`+"\n", px(labelWidth),
		px(labelWidth+stripWidth), px(base-writeHeight*0.85))
}

// wanted reports whether a client wanted to write all the time from one moment to another.
func (r *Run) wanted(from, to time.Duration) bool {
	return slices.ContainsFunc(r.Writing, func(s Stretch) bool { return s.From <= from && to <= s.To })
}

// lane draws how one server answered: in the colour of the worst, half as high when it also
// acknowledged.
func (d *drawing) lane(server string, buckets []placed, x func(time.Duration) float64, top float64) {
	d.label(top+laneHeight*0.8, server, "green: acknowledged; red: failed, or no answer in time")
	var ok, failed strings.Builder
	for _, b := range buckets {
		a := b.servers[server]
		if a == nil {
			continue
		}
		left, width := x(b.at), x(b.at+bucketTime)-x(b.at)
		high := laneHeight - 2
		if a.ok > 0 {
			fmt.Fprintf(&ok, "M%s %sh%sv%sh-%sz", px(left), px(top), px(width), px(high), px(width))
			high /= 2
		}
		if a.failed > 0 {
			fmt.Fprintf(&failed, "M%s %sh%sv%sh-%sz", px(left), px(top), px(width), px(high), px(width))
		}
	}
	if ok.Len() > 0 {
		d.printf(`<path class="acked" d="%s"/>`, ok.String())
	}
	if failed.Len() > 0 {
		d.printf(`<path class="failed" d="%s"/>`, failed.String())
	}
	d.printf("\n")
}

// The scale of delays is logarithmic, over four powers of ten.
const (
	fastest = time.Millisecond
	decades = 4
)

// delays draws how long acknowledged writes took: a line from the median to the longest of each
// bucket.
func (d *drawing) delays(buckets []placed, x func(time.Duration) float64, top float64) {
	y := func(took time.Duration) float64 {
		part := math.Log10(float64(max(took, fastest))/float64(fastest)) / decades
		return top + delayHeight*(1-math.Min(1, part))
	}
	for i, name := range []string{"1ms", "10ms", "100ms", "1s", "10s"} {
		at := top + delayHeight*(1-float64(i)/decades)
		d.printf(`<line class="grid" x1="%s" x2="%s" y1="%[3]s" y2="%[3]s"/>`, px(labelWidth),
			px(labelWidth+stripWidth), px(at))
		d.label(at+3, name, "how long an acknowledged write took, median to longest")
	}
	var path strings.Builder
	for _, b := range buckets {
		if len(b.took) == 0 {
			continue
		}
		at := x(b.at + bucketTime/2)
		low, high := y(Median(b.took)), y(slices.Max(b.took))
		fmt.Fprintf(&path, "M%s %sV%s", px(at), px(low+1), px(min(high, low)))
	}
	if path.Len() > 0 {
		d.printf(`<path class="delay" d="%s"/>`, path.String())
	}
	d.printf("\n")
}
