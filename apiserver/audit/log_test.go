package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/internal/await"
)

func event(id string) *auditinternal.Event {
	e := &auditinternal.Event{AuditID: types.UID(id), Level: auditinternal.LevelMetadata,
		Stage: auditinternal.StageResponseComplete, Verb: "create"}
	e.User.Username = "ann"
	return e
}

// run runs a Log. It returns a function that stops the Log and waits for its end.
func run(t *testing.T, l *Log) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

func newLog(t *testing.T, o *Options, path string) *Log {
	t.Helper()
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	l, err := New(o, path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ids returns the IDs of the events in a file.
func ids(t *testing.T, path string) (out []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("line %q: %v", line, err)
			continue
		}
		if e.Kind != "Event" || e.APIVersion != "audit.k8s.io/v1" {
			t.Errorf("kind %s of %s", e.Kind, e.APIVersion)
		}
		out = append(out, string(e.AuditID))
	}
	return out
}

// TestFlushOnStop: all events before the stop are in the file, in order. Only root may read it.
func TestFlushOnStop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	l := newLog(t, NewOptions(), path)
	stop := run(t, l)
	var want []string
	for i := range 3000 {
		want = append(want, fmt.Sprint(i))
		l.ProcessEvents(event(want[i]))
	}
	stop()
	if got := ids(t, path); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d events, want %d in order", len(got), len(want))
	}
	for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(p); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	l.ProcessEvents(event("late"))
	if lost := l.Losses(); len(lost) != 1 || lost[0].Events != 1 || lost[0].Reason != errStopped.Error() {
		t.Errorf("an event after the end: %+v", lost)
	}
	again := newLog(t, NewOptions(), path)
	stop = run(t, again)
	again.ProcessEvents(event("again"))
	stop()
	if got := ids(t, path); len(got) != 3001 || got[3000] != "again" {
		t.Errorf("after another start there are %d events", len(got))
	}
}

// TestRotation: the files are bounded.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	o := NewOptions()
	o.LogOptions.MaxSize, o.LogOptions.MaxBackups, o.LogOptions.Compress = 1, 2, false
	l := newLog(t, o, filepath.Join(dir, "audit.log"))
	stop := run(t, l)
	for i := range 100 {
		e := event(fmt.Sprint(i))
		e.Level = auditinternal.LevelRequest
		e.RequestObject = &runtime.Unknown{Raw: []byte(`"` + strings.Repeat("x", 100<<10) + `"`),
			ContentType: runtime.ContentTypeJSON}
		l.ProcessEvents(e)
		await.True(t, "the event is written", func() bool { return l.waiting() == 0 })
	}
	stop()
	await.NoError(t, "two files beside the current one", func(context.Context) error {
		var total int64
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return err
			}
			if info.Mode() != 0o600 {
				t.Errorf("%s has the mode %s", e.Name(), info.Mode())
			}
			total += info.Size()
		}
		if len(entries) > 3 || total > 3<<20 || len(entries) < 2 {
			return fmt.Errorf("%d files of %d bytes", len(entries), total)
		}
		return nil
	})
}

// waiting returns how many events wait in all queues or are on their way, in bytes.
func (l *Log) waiting() (bytes int) {
	for _, s := range l.sinks {
		if s.queue != nil {
			s.queue.mu.Lock()
			bytes += s.queue.bytes
			s.queue.mu.Unlock()
		}
	}
	return bytes
}

// errorTotal is the metric of one sink.
func errorTotal(t *testing.T, sink string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_audit_error_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == sink {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestFullDisk: events are lost and counted, requests go on, and the log has a few lines.
func TestFullDisk(t *testing.T) {
	for _, mode := range []string{"batch", "blocking", "blocking-strict"} {
		t.Run(mode, func(t *testing.T) {
			before := errorTotal(t, "log")
			var said bytes.Buffer
			o := NewOptions()
			o.LogOptions.MaxSize, o.LogOptions.BatchOptions.Mode = 0, mode // the device is not rotated
			l, err := New(o, "/dev/full", slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil {
				t.Fatal(err)
			}
			stop := run(t, l)
			const n = 500
			for range n {
				if ok := l.ProcessEvents(event("x")); ok != (mode != "blocking-strict") {
					t.Fatalf("an event that is lost: %v", ok)
				}
			}
			stop()
			lost := l.Losses()
			if len(lost) != 1 || lost[0].Events != n || lost[0].Sink != "log" || lost[0].Target != "/dev/full" ||
				!strings.Contains(lost[0].Reason, syscall.ENOSPC.Error()) {
				t.Errorf("%+v", lost)
			}
			if got := errorTotal(t, "log") - before; got != n {
				t.Errorf("the metric counts %v, want %d", got, n)
			}
			if lines := strings.Count(said.String(), "\n"); lines != 1 ||
				!strings.Contains(said.String(), "no space left") {
				t.Errorf("%d lines:\n%s", lines, &said)
			}
		})
	}
}

// short is a disk that takes n bytes and then is full; give makes room.
type short struct {
	bytes.Buffer
	n int
}

func (s *short) Write(p []byte) (int, error) {
	if len(p) > s.n {
		n, _ := s.Buffer.Write(p[:s.n])
		s.n = 0
		return n, syscall.ENOSPC
	}
	s.n -= len(p)
	return s.Buffer.Write(p)
}

// TestTornLine: the line that was cut off by a full disk spoils no other.
func TestTornLine(t *testing.T) {
	disk := &short{n: 100}
	f := newFile(disk, "json", auditv1.SchemeGroupVersion)
	if err := f.send(t.Context(), []*auditinternal.Event{event("a"), event("b")}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	disk.n = 1 << 20
	if err := f.send(t.Context(), []*auditinternal.Event{event("c"), event("d")}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(disk.String(), "\n"), "\n")
	if len(lines) != 3 || len(lines[0]) != 100 || !json.Valid([]byte(lines[1])) || !json.Valid([]byte(lines[2])) ||
		!strings.Contains(lines[1], `"c"`) {
		t.Errorf("%q", lines)
	}
}

// hanging is a target that takes events only after its release.
type hanging struct {
	mu      sync.Mutex
	batches [][]*auditinternal.Event
	obeys   bool // its context
	goOn    chan struct{}
}

func (h *hanging) send(ctx context.Context, events []*auditinternal.Event) error {
	var done <-chan struct{}
	if h.obeys {
		done = ctx.Done()
	}
	select {
	case <-h.goOn:
	case <-done:
		return context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, events)
	return nil
}

// TestHangingTarget: no request waits, memory is bounded, losses are counted, and a stop ends.
func TestHangingTarget(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		t.Run(fmt.Sprintf("obeys %v", obeys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{obeys: obeys, goOn: make(chan struct{})}
				lost := newLosses("webhook", "w", quiet)
				q := newQueue(h, buffered.BatchConfig{BufferSize: 100, MaxBatchSize: 10, MaxBatchWait: time.Second}, 2,
					lost.lost)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					q.run(ctx)
					close(done)
				}()
				for i := range 1000 {
					q.add(event(fmt.Sprint(i)))
					synctest.Wait()
				}
				// 20 are on their way, 10 wait for a turn, and 100 in the queue.
				if got := lost.loss(); got.Events != 1000-130 || got.Reason != errQueueFull.Error() {
					t.Errorf("%+v", got)
				}
				began := time.Now()
				cancel()
				<-done
				want, longest := uint64(1000), flushTimeout
				if !obeys {
					longest += leaveTimeout
					want -= 20 // whether these are lost is not known
				}
				if took := time.Since(began); took != longest {
					t.Errorf("the stop took %s, want %s", took, longest)
				}
				if got := lost.loss(); got.Events != want {
					t.Errorf("%d are lost at the end, want %d", got.Events, want)
				}
				close(h.goOn)
			})
		})
	}
}

// TestQueueBytes: large events are bounded by their bytes, and these are given back.
func TestQueueBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{obeys: true, goOn: make(chan struct{})}
		lost := newLosses("webhook", "w", quiet)
		q := newQueue(h, buffered.BatchConfig{BufferSize: 10000, MaxBatchSize: 1}, 1, lost.lost)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			q.run(ctx)
			close(done)
		}()
		for i := range 1000 {
			e := event("x")
			if i%2 == 0 {
				e.RequestObject = &runtime.Unknown{Raw: make([]byte, 1<<20)}
			} else {
				e.Annotations = map[string]string{"a": string(make([]byte, 1<<20))}
			}
			q.add(e)
		}
		synctest.Wait()
		if q.bytes > maxQueueBytes || q.bytes < maxQueueBytes/2 {
			t.Errorf("%d bytes are in the queue", q.bytes)
		}
		if n := lost.loss().Events; n < 900 {
			t.Errorf("only %d are lost", n)
		}
		close(h.goOn)
		synctest.Wait()
		if q.bytes != 0 {
			t.Errorf("%d bytes are left", q.bytes)
		}
		q.add(event("small"))
		cancel()
		<-done
		if last := h.batches[len(h.batches)-1]; last[0].AuditID != "small" {
			t.Errorf("the last one is %s", last[0].AuditID)
		}
	})
}

// TestBatches: a batch goes when it is full, or after its time; the stop waits for no time.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{goOn: make(chan struct{})}
		close(h.goOn)
		q := newQueue(h,
			buffered.BatchConfig{BufferSize: 100, MaxBatchSize: 4, MaxBatchWait: 30 * time.Second, ThrottleEnable: true,
				ThrottleQPS: 1, ThrottleBurst: 1}, 1,
			func(err error, _ ...*auditinternal.Event) { t.Error(err) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			q.run(ctx)
			close(done)
		}()
		sizes := func(want ...int) {
			t.Helper()
			var got []int
			h.mu.Lock()
			for _, b := range h.batches {
				got = append(got, len(b))
			}
			h.mu.Unlock()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("batches of %v, want %v", got, want)
			}
		}
		for range 5 {
			q.add(event("x"))
		}
		synctest.Wait()
		sizes(4)
		time.Sleep(time.Minute)
		sizes(4, 1)
		for range 9 {
			q.add(event("x"))
		}
		synctest.Wait()
		sizes(4, 1, 4)
		time.Sleep(1100 * time.Millisecond) // the throttle's second
		sizes(4, 1, 4, 4)
		began := time.Now()
		cancel()
		<-done
		if time.Since(began) > 0 {
			t.Error("the stop has waited")
		}
		sizes(4, 1, 4, 4, 1)
	})
}

type panicking struct{}

func (panicking) send(context.Context, []*auditinternal.Event) error { panic("a bug") }

func TestPanickingTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := newLosses("log", "l", quiet)
		q := newQueue(panicking{}, buffered.BatchConfig{BufferSize: 10, MaxBatchSize: 1}, 1, lost.lost)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q.add(event("x"), event("y"))
		q.run(ctx)
		if got := lost.loss(); got.Events != 2 || got.Reason != "panic: a bug" {
			t.Errorf("%+v", got)
		}
	})
}

// hookFile writes the kubeconfig of a webhook.
func hookFile(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook.yaml")
	text := fmt.Sprintf(
		"apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n", url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWebhook: a webhook that fails first gets all events, once it takes them.
func TestWebhook(t *testing.T) {
	var mu sync.Mutex
	var got []string
	fails := 2
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if fails--; fails >= 0 {
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil || list.Kind != "EventList" {
			t.Errorf("%s: %v", list.Kind, err)
		}
		for _, e := range list.Items {
			got = append(got, string(e.AuditID))
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	o := NewOptions()
	o.LogOptions.Path = Off
	o.WebhookOptions.ConfigFile, o.WebhookOptions.InitialBackoff = hookFile(t, server.URL), time.Millisecond
	o.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait = 10 * time.Millisecond
	l := newLog(t, o, "/nowhere")
	if l.File != "" {
		t.Errorf("the file is %s", l.File)
	}
	stop := run(t, l)
	for i := range 10 {
		l.ProcessEvents(event(fmt.Sprint(i)))
	}
	await.True(t, "all events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 10
	})
	stop()
	if lost := l.Losses(); len(lost) != 0 {
		t.Errorf("%+v", lost)
	}
}

// TestDeadWebhook: the file gets all events although the webhook takes no connection, and the stop
// gives the webhook's events up.
func TestDeadWebhook(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	path := filepath.Join(t.TempDir(), "audit.log")
	o := NewOptions()
	o.WebhookOptions.ConfigFile, o.WebhookOptions.InitialBackoff = hookFile(t, server.URL), time.Millisecond
	l := newLog(t, o, path)
	stop := run(t, l)
	for i := range 10 {
		l.ProcessEvents(event(fmt.Sprint(i)))
	}
	stop()
	if got := ids(t, path); len(got) != 10 {
		t.Errorf("the file has %v", got)
	}
	if lost := l.Losses(); len(lost) != 1 || lost[0].Sink != "webhook" || lost[0].Events != 10 ||
		!strings.Contains(lost[0].Reason, "refused") {
		t.Errorf("%+v", lost)
	}
}

// TestStrangers: callers without an identity cannot fill the file. With a policy file, the log has
// all the events of the policy.
func TestStrangers(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(DefaultPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"", policy} {
		path := filepath.Join(t.TempDir(), "audit.log")
		o := NewOptions()
		o.PolicyFile = file
		l := newLog(t, o, path)
		stop := run(t, l)
		const n = 1000
		for i := range n {
			for _, name := range []string{"", "system:anonymous"} {
				e := event(fmt.Sprint(i))
				e.User.Username = name
				l.ProcessEvents(e)
			}
			l.ProcessEvents(event("ann"))
		}
		stop()
		got := len(ids(t, path))
		lost := l.Losses()
		if file != "" {
			if got != 3*n || len(lost) != 0 {
				t.Errorf("with a policy of the user's there are %d events, and lost %+v", got, lost)
			}
			continue
		}
		if got < n+strangersBurst || got > 2*n || len(lost) != 1 || lost[0].Sink != "limit" ||
			int(lost[0].Events)+got != 3*n {
			t.Errorf("%d events, lost %+v", got, lost)
		}
	}
}

// longEvent is of a request all of whose texts are as long as requests may be.
func longEvent(id string) *auditinternal.Event {
	long := strings.Repeat("é&", 300<<10)
	e := event(id)
	e.RequestURI, e.Verb, e.UserAgent = "/"+long, long, long
	e.ObjectRef = &auditinternal.ObjectReference{Resource: long, Namespace: long, Name: long, Subresource: long}
	e.ResponseStatus = &metav1.Status{Message: long, Details: &metav1.StatusDetails{Name: long}}
	e.Annotations = map[string]string{"reason": long}
	for range 1000 {
		e.SourceIPs = append(e.SourceIPs, "2001:db8::1")
		e.ResponseStatus.Details.Causes = append(e.ResponseStatus.Details.Causes, metav1.StatusCause{Message: long})
	}
	return e
}

// TestLongTexts: one request cannot fill the files or the memory. Its event stays as it was for
// others.
func TestLongTexts(t *testing.T) {
	e := longEvent("long")
	got := bounded(e)
	if size := sizeOf(got); size > 64*maxText || size < maxText {
		t.Errorf("an event of %d bytes", size)
	}
	if len(e.RequestURI) < 500<<10 || len(e.SourceIPs) != 1000 || len(e.ResponseStatus.Details.Causes) != 1000 {
		t.Error("the event itself was changed")
	}
	for text := range texts(got) {
		if *text != "" && *text != "2001:db8::1" &&
			(!utf8.ValidString(*text) || !strings.HasSuffix(*text, cutMark) || len(*text) > maxText) {
			t.Errorf("%d bytes: %.20q", len(*text), *text)
		}
	}
	if short := event("short"); bounded(short) != short {
		t.Error("a short event was copied")
	}
}

// TestStrangersBytes: a stranger's events have a bound in bytes, too. So has a refused node.
func TestStrangersBytes(t *testing.T) {
	for name, who := range map[string]authenticationv1.UserInfo{
		"a stranger": {Username: "system:anonymous"},
		"a node":     {Username: "system:node:n1", Groups: []string{"system:nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			l := newLog(t, NewOptions(), path)
			stop := run(t, l)
			e := longEvent("long")
			e.User = who
			e.Verb, e.ObjectRef.Resource, e.ObjectRef.Subresource = "get", "pods", "" // the policy omits it for nodes
			e.ResponseStatus.Code = http.StatusForbidden
			for range 100 {
				l.ProcessEvents(e)
			}
			l.ProcessEvents(event("ann"))
			stop()
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > 2*limitBurst || info.Size() < limitBurst/100 {
				t.Errorf("%d bytes are in the file", info.Size())
			}
			if got := ids(t, path); got[len(got)-1] != "ann" {
				t.Errorf("the last one is %s", got[len(got)-1])
			}
		})
	}
}

// TestTruncate: upstream's options apply.
func TestTruncate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	o := NewOptions()
	o.LogOptions.TruncateOptions.Enabled = true
	l := newLog(t, o, path)
	stop := run(t, l)
	e := event("large")
	e.Level = auditinternal.LevelRequest
	e.RequestObject = &runtime.Unknown{Raw: []byte(`"` + strings.Repeat("x", 200<<10) + `"`),
		ContentType: runtime.ContentTypeJSON}
	l.ProcessEvents(e)
	stop()
	data, err := os.ReadFile(path)
	if err != nil || len(data) > 10<<10 || !strings.Contains(string(data), "audit.k8s.io/truncated") {
		t.Errorf("%d bytes: %.200s, %v", len(data), data, err)
	}
}
