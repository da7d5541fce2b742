package timeline

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func acked(at ...time.Duration) (samples []Sample) {
	for _, a := range at {
		samples = append(samples, Sample{Server: "s1", Begin: a - ms, End: a, OK: true})
	}
	return samples
}

func TestGaps(t *testing.T) {
	for _, c := range []struct {
		what        string
		acks        []time.Duration
		begin, well time.Duration
		want        time.Duration
	}{
		{"between two acknowledgements inside", []time.Duration{100 * ms, 150 * ms, 900 * ms, 1000 * ms}, 120 * ms,
			950 * ms, 750 * ms},
		{"it began before the fault", []time.Duration{100 * ms, 900 * ms, 910 * ms}, 500 * ms, 905 * ms, 800 * ms},
		{"it ends after all was well", []time.Duration{100 * ms, 900 * ms}, 50 * ms, 200 * ms, 800 * ms},
		{"before the first acknowledgement", []time.Duration{700 * ms}, 10 * ms, 20 * ms, 700 * ms},
		{"nothing comes after it", []time.Duration{100 * ms}, 150 * ms, 2000 * ms, 1900 * ms},
		{"what lies before counts not", []time.Duration{100 * ms, 900 * ms, 950 * ms, 1000 * ms}, 950 * ms, 990 * ms,
			50 * ms},
		{"what lies after counts not", []time.Duration{100 * ms, 150 * ms, 900 * ms}, 90 * ms, 150 * ms, 100 * ms},
		{"no write at all", nil, 100 * ms, 300 * ms, 300 * ms},
	} {
		r := &Run{Samples: acked(c.acks...), Spans: []Span{{Kind: "k", Begin: c.begin, End: c.begin, Settled: c.well}}}
		// Neither the order nor failed samples change anything.
		slices.Reverse(r.Samples)
		r.Samples = append(r.Samples, Sample{Server: "s1", Begin: c.begin, End: c.begin + ms})
		if got := r.Gaps()[0]; got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

func TestLines(t *testing.T) {
	r := &Run{Samples: acked(0, 100*ms, 400*ms, 500*ms, 1500*ms, 1600*ms), Length: 2 * time.Second}
	r.Spans = []Span{
		{Kind: "kill", Begin: 90 * ms, End: 110 * ms, Settled: 450 * ms},
		{Kind: "pause", Begin: 420 * ms, End: 430 * ms, Settled: 440 * ms},
		{Kind: "kill", Begin: 600 * ms, End: 700 * ms, Settled: 1550 * ms},
		{Kind: "restore", Begin: 1800 * ms, End: 1900 * ms, Settled: 1900 * ms, Unheard: true},
	}
	want := []Line{
		{"kill", 2, time.Second, time.Second, 850 * ms, 850 * ms, false},
		{"pause", 1, 100 * ms, 100 * ms, 10 * ms, 10 * ms, false},
		{"restore", 1, 0, 0, 0, 0, true},
	}
	if got := r.Lines(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var text strings.Builder
	if err := r.Table(&text); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(text.String()), "\n"); len(lines) != 4 ||
		strings.Join(strings.Fields(lines[3]), " ") != "restore 1 - - 0s 0s" || !strings.HasPrefix(lines[1], "kill ") ||
		strings.Join(strings.Fields(lines[1]), " ") != "kill 2 1s 1s 850ms 850ms" {
		t.Errorf("the table is\n%s", text.String())
	}
}

// sketch is a run of some minutes: servers that answer, but for those that a fault has met.
func sketch() *Run {
	rnd := rand.New(rand.NewPCG(1, 2))
	r := &Run{Title: `chaos, seed 7 <&"'>`, Repeat: "make chaos SEED=7", Servers: []string{"s1", "s2", "s3"},
		Length: 150 * time.Second, Writing: []Stretch{{0, 150 * time.Second}},
		Facts: []string{"3 servers, 2 agents"}}
	kinds := []string{"kill the leader", "leader alone", "disk full: leader", "<b>packet loss</b>"}
	for at := 3 * time.Second; at < 140*time.Second; at += 11 * time.Second {
		n := len(r.Spans)
		r.Spans = append(r.Spans,
			Span{Kind: kinds[n%4], Targets: []string{r.Servers[n%3]}, Note: "it led", Begin: at,
				End: at + 4*time.Second, Settled: at + 7*time.Second})
	}
	for i, s := range r.Servers {
		for at := time.Duration(0); at < r.Length; at += time.Duration(10+rnd.IntN(30)) * ms {
			took, ok := time.Duration(2+rnd.IntN(20))*ms, true
			for n, f := range r.Spans {
				switch {
				case at >= f.Begin && at < f.Begin+700*ms:
					took, ok = 500*ms, false
				case at >= f.Begin && at < f.End && n%3 == i:
					took, ok = 500*ms, rnd.IntN(8) == 0
				}
			}
			r.Samples = append(r.Samples, Sample{Server: s, Begin: at, End: at + took, OK: ok})
			at += took
		}
	}
	return r
}

var out = flag.String("page", "", "write the page of the sketch to this file, to look at it")

// TestPage: the page is well-formed, has every fault, and text of others is only text.
func TestPage(t *testing.T) {
	r := sketch()
	r.Verdict = []string{"lost <script>alert(1)</script>"}
	var text strings.Builder
	if err := r.HTML(&text); err != nil {
		t.Fatal(err)
	}
	if *out != "" {
		if err := r.WriteFile(*out); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"<b>", "<script", `src=`, `href=`} {
		if strings.Contains(text.String(), bad) {
			t.Errorf("the page contains %s", bad)
		}
	}
	for _, want := range []string{"kill the leader", "make chaos SEED=7", "FAILURE lost", "3 servers, 2 agents"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page says nothing of %s", want)
		}
	}
	bars, none := 0, 0
	for d := xml.NewDecoder(strings.NewReader(r.SVG())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the drawing is no XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				switch a.Value {
				case "fault":
					bars++
				case "none":
					none++
				case "NaN", "-NaN", "+Inf":
					t.Errorf("%s of %s is %s", a.Name.Local, e.Name.Local, a.Value)
				}
			}
		}
	}
	if bars < len(r.Spans) || bars > len(r.Spans)+2 { // one that crosses a minute is drawn twice
		t.Errorf("%d bars for %d faults", bars, len(r.Spans))
	}
	if none < len(r.Spans) {
		t.Errorf("%d buckets without a write, and there were %d faults that let none pass", none, len(r.Spans))
	}
}

// TestWriting: time is red, and counts, only while a client wanted to write.
func TestWriting(t *testing.T) {
	r := &Run{Length: 5 * time.Second, Samples: acked(100*ms, 300*ms, 1100*ms, 3900*ms, 4150*ms),
		Writing: []Stretch{{0, 1300 * ms}, {3100 * ms, 4500 * ms}}}
	if none := strings.Count(r.SVG(), `class="none"`); none != 3+3+1 { // from 0.4 s on, 3.2 s and 4.2 s
		t.Errorf("%d buckets are red", none)
	}
	if got := r.Longest(); got != 800*ms {
		t.Errorf("the longest time without a write is %v", got)
	}
	for _, c := range []struct {
		what    string
		writing []Stretch
		want    time.Duration
	}{
		{"nobody wanted to", nil, 0},
		{"before the first one", []Stretch{{1200 * ms, 4 * time.Second}}, 2700 * ms},
		{"after the last one", []Stretch{{4 * time.Second, 5 * time.Second}}, 850 * ms},
		{"none in it", []Stretch{{1200 * ms, 1500 * ms}}, 300 * ms},
	} {
		r.Writing = c.writing
		if got := r.Longest(); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestEmpty: a run that came to nothing can be shown too.
func TestEmpty(t *testing.T) {
	for _, r := range []*Run{{}, {Length: time.Second}, {Length: time.Second, Spans: []Span{{Kind: "k"}}}} {
		if err := errors.Join(r.HTML(io.Discard), r.Table(io.Discard)); err != nil {
			t.Error(err)
		}
	}
}
