package shutdown

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/config/v1beta1"
)

func TestPeriods(t *testing.T) {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	for name, c := range map[string]struct {
		config v1beta1.KubeletConfiguration
		want   []Period
	}{
		"none": {},
		"both": {
			v1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30),
				ShutdownGracePeriodCriticalPods: seconds(10)},
			[]Period{{0, 20 * time.Second}, {systemCriticalPriority, 10 * time.Second}}},
		"nothing for critical pods": {v1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30)},
			[]Period{{0, 30 * time.Second}, {systemCriticalPriority, 0}}},
		"by priority": {
			v1beta1.KubeletConfiguration{ShutdownGracePeriodByPodPriority: []v1beta1.ShutdownGracePeriodByPodPriority{
				{Priority: 1000, ShutdownGracePeriodSeconds: 5}, {Priority: -10, ShutdownGracePeriodSeconds: 7}}},
			[]Period{{-10, 7 * time.Second}, {1000, 5 * time.Second}}},
	} {
		if got := Periods(&c.config); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	d := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	by := func(seconds int64) []v1beta1.ShutdownGracePeriodByPodPriority {
		return []v1beta1.ShutdownGracePeriodByPodPriority{{Priority: 1, ShutdownGracePeriodSeconds: seconds}}
	}
	for want, c := range map[string]v1beta1.KubeletConfiguration{
		"": {ShutdownGracePeriod: d(time.Minute),
			ShutdownGracePeriodCriticalPods: d(time.Minute)},
		"shutdownGracePeriod: 500ms": {ShutdownGracePeriod: d(500 * time.Millisecond)},
		"shutdownGracePeriodCriticalPods:": {ShutdownGracePeriod: d(time.Second),
			ShutdownGracePeriodCriticalPods: d(2 * time.Second)},
		"not both": {ShutdownGracePeriod: d(time.Second),
			ShutdownGracePeriodByPodPriority: by(1)},
		"-1 seconds": {ShutdownGracePeriodByPodPriority: by(-1)},
	} {
		if err := errors.Join(Validate(&c)...); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error about %q", err, want)
		}
	}
}

func podOf(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{Priority: &priority}}
}

func TestGroups(t *testing.T) {
	periods := []Period{{Priority: 10}, {Priority: 20}, {Priority: 30}}
	without := podOf("without", 0)
	without.Spec.Priority = nil
	got := ""
	for _, g := range group(periods,
		[]*v1.Pod{podOf("below", -5), without, podOf("first", 10), podOf("between", 19), podOf("second", 20),
			podOf("above", 1<<30)}) {
		got += fmt.Sprint(g.Priority, ":")
		for _, pod := range g.pods {
			got += " " + pod.Name
		}
		got += "\n"
	}
	if want := "10: below without first between\n20: second\n30: above\n"; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

// machine is a logind and the pods of a node, in virtual time.
type machine struct {
	t       *testing.T
	manager *Manager

	mu        sync.Mutex
	preparing bool
	delay     time.Duration
	deaf      bool // it does not take a longer delay
	locks     []*os.File
	hints     chan struct{}
	pods      map[types.UID]*v1.Pod
	takes     map[types.UID]time.Duration // that a pod takes to end; for ever when it is not there
	goneAt    map[types.UID]time.Time
	log       []string
	began     time.Time
	kept      time.Duration // how long the API server has wrong volumes after a pod is gone
	learns    time.Duration // until a kubelet that starts knows its pods
	known     chan struct{}
	absent    bool // there is no logind behind D-Bus
	warned    bytes.Buffer
}

var errAbsent = errors.New("the name org.freedesktop.login1 was not provided by any .service files")

func (m *machine) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%.1f ", time.Since(m.began).Seconds())+fmt.Sprintf(format, args...))
}

func (m *machine) Preparing(context.Context) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.absent {
		return false, fmt.Errorf("read PreparingForShutdown: %w", errAbsent)
	}
	return m.preparing, nil
}

func (m *machine) Inhibit(context.Context) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.preparing {
		return nil, errors.New("the operation inhibition has been requested for is already running")
	}
	r, w, err := os.Pipe() // as logind's
	if err != nil {
		return nil, err
	}
	m.locks = append(m.locks, r)
	return w, nil
}

// locked returns how many locks are held: the other end of a closed pipe reads nothing.
func (m *machine) locked() (held int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.locks {
		raw, err := r.SyscallConn()
		if err != nil {
			m.t.Fatal(err)
		}
		if err := raw.Read(func(fd uintptr) bool {
			if _, err := unix.Read(int(fd), make([]byte, 1)); errors.Is(err, unix.EAGAIN) {
				held++
			}
			return true // without waiting
		}); err != nil {
			m.t.Fatal(err)
		}
	}
	return held
}

func (m *machine) LongestDelay(context.Context) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.absent {
		return 0, fmt.Errorf("read InhibitDelayMaxUSec: %w", errAbsent)
	}
	return m.delay, nil
}

func (m *machine) SetLongestDelay(_ context.Context, d time.Duration) error {
	time.AfterFunc(300*time.Millisecond, func() { // brief: logind takes this long; virtual time
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.deaf {
			m.delay = d
		}
	})
	return nil
}

func (m *machine) Hints() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints
}

func (m *machine) Close() error { return nil }

func (m *machine) connect(context.Context) (Logind, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hints = make(chan struct{}, 1)
	return m, nil
}

// drop ends the connection to logind.
func (m *machine) drop() {
	m.mu.Lock()
	close(m.hints)
	m.mu.Unlock()
	synctest.Wait()
}

// prepare sets whether logind reports a shutdown.
func (m *machine) prepare(is bool) {
	m.mu.Lock()
	m.preparing = is
	m.hints <- struct{}{}
	m.mu.Unlock()
	synctest.Wait()
}

func (m *machine) Known() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known
}

func (m *machine) Holding() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*v1.Pod
	select {
	case <-m.known:
	default:
		return nil
	}
	for _, pod := range m.pods {
		list = append(list, pod)
	}
	slices.SortFunc(list, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (m *machine) End(uid types.UID, within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("end %s within %s", uid, within)
	if takes, ends := m.takes[uid]; ends {
		m.goneAt[uid] = time.Now().Add(takes)
	}
}

func (m *machine) Gone(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ends := m.goneAt[uid]
	return ends && !time.Now().Before(at)
}

func (m *machine) released() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.goneAt {
		if !time.Now().Before(at) && time.Now().Before(at.Add(m.kept)) { // brief: virtual time
			return false
		}
	}
	return true
}

func (m *machine) logged() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.log, "\n")
}

// inBubble gives a test a machine with three pods, whose periods are 20 s and 10 s.
func inBubble(t *testing.T, test func(m *machine, restart func())) {
	file := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		m := &machine{t: t, delay: 5 * time.Second, learns: time.Second, began: time.Now(),
			goneAt: map[types.UID]time.Time{},
			pods: map[types.UID]*v1.Pod{"app": podOf("app", 0), "db": podOf("db", 100),
				"driver": podOf("driver", systemCriticalPriority)},
			takes: map[types.UID]time.Duration{"app": time.Second, "db": 3 * time.Second, "driver": time.Second}}
		m.pods["app"].Spec.TerminationGracePeriodSeconds = new(int64(5))
		m.pods["db"].Spec.TerminationGracePeriodSeconds = new(int64(300))
		var stop func()
		start := func() {
			known := make(chan struct{})
			time.AfterFunc(m.learns, func() { close(known) })
			m.mu.Lock()
			m.known = known
			m.mu.Unlock()
			m.manager = New(
				Config{Periods: []Period{{0, 20 * time.Second}, {systemCriticalPriority, 10 * time.Second}}, Pods: m,
					Released: m.released, Connect: m.connect,
					Changed: func() {}, File: file,
					Logger: slog.New(slog.NewTextHandler(&m.warned, &slog.HandlerOptions{Level: slog.LevelWarn})),
					NodeEvent: func(reason, message string) {
						m.mu.Lock()
						defer m.mu.Unlock()
						m.note("%s: %s", reason, message)
					}})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- m.manager.Run(ctx) }()
			stop = func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			time.Sleep(2 * time.Second) // virtual: the delay is set
			synctest.Wait()
			m.mu.Lock()
			m.began, m.log = time.Now(), nil
			m.mu.Unlock()
		}
		start()
		test(m, func() { stop(); start() })
		stop()
		if held := m.locked(); held != 0 {
			t.Errorf("%d locks are left", held)
		}
		for _, r := range m.locks {
			r.Close()
		}
	})
}

func (m *machine) expect(held int, begun bool, log ...string) {
	m.t.Helper()
	synctest.Wait()
	if got := m.locked(); got != held {
		m.t.Errorf("%d locks are held, want %d", got, held)
	}
	if m.manager.Begun() != begun {
		m.t.Errorf("begun: %v", m.manager.Begun())
	}
	if got := m.logged(); got != strings.Join(log, "\n") {
		m.t.Errorf("it did\n%s\nwant\n%s", got, strings.Join(log, "\n"))
	}
}

const begins, cancels = "0.0 NodeShutdown: Shutdown manager detected shutdown event",
	"NodeShutdown: Shutdown manager detected shutdown cancellation"

func TestPodsEndByPriority(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		m.expect(1, false)
		if m.delay != 30*time.Second {
			t.Errorf("logind waits for %s", m.delay)
		}
		m.prepare(true)
		m.expect(1, true, begins, "0.0 end app within 5s", "0.0 end db within 20s")
		time.Sleep(3500 * time.Millisecond)
		m.expect(1, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "3.0 end driver within 10s")
		time.Sleep(time.Second)
		m.expect(0, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "3.0 end driver within 10s")
		if now := m.manager.load(); now.Ended.Sub(now.Began) != 4*time.Second {
			t.Errorf("noted %+v", now)
		}
		time.Sleep(time.Hour)
		m.expect(0, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "3.0 end driver within 10s")
	})
}

func TestAGroupHasItsTime(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		delete(m.takes, "db") // it never ends
		m.prepare(true)
		time.Sleep(20 * time.Second)
		m.expect(1, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "20.0 end driver within 10s")
		time.Sleep(time.Second)
		m.expect(0, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "20.0 end driver within 10s")
	})
}

func TestVolumesAreToldOf(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		m.kept = 4 * time.Second
		m.prepare(true)
		time.Sleep(7500 * time.Millisecond)
		m.expect(1, true, begins, "0.0 end app within 5s", "0.0 end db within 20s", "7.0 end driver within 10s")
	})
}

func TestCancelledShutdown(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		m.prepare(true)
		time.Sleep(2 * time.Second)
		m.prepare(false)
		want := []string{begins, "0.0 end app within 5s", "0.0 end db within 20s", "2.0 " + cancels}
		m.expect(1, false, want...)
		time.Sleep(time.Hour)
		m.expect(1, false, want...)
		m.prepare(true)
		m.expect(1, true, append(want, "3602.0"+begins[3:], "3602.0 end app within 5s", "3602.0 end db within 20s")...)
	})
}

// A kubelet that starts while the machine goes down gets no lock and ends the pods all the same, as
// soon as it knows them.
func TestRestartInAShutdown(t *testing.T) {
	inBubble(t, func(m *machine, restart func()) {
		delete(m.takes, "app") // it never ends
		m.prepare(true)
		restart()
		time.Sleep(time.Second)
		m.expect(0, true) // the first steps of the new one are no longer logged
		time.Sleep(20 * time.Second)
		m.expect(0, true, "19.0 end driver within 10s")
	})
}

// A connection that breaks loses neither the lock nor the shutdown that has begun.
func TestReconnects(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		m.drop()
		m.expect(1, false)
		time.Sleep(reconnectAfter)
		m.expect(1, false)
		m.prepare(true)
		m.drop()
		m.expect(1, true, "1.0"+begins[3:], "1.0 end app within 5s", "1.0 end db within 20s")
		time.Sleep(5 * time.Second)
		m.expect(0, true, "1.0"+begins[3:], "1.0 end app within 5s", "1.0 end db within 20s",
			"4.0 end driver within 10s")
	})
}

// A shutdown that begins while there is no connection waits for the lock from before.
func TestBeginsWithoutAConnection(t *testing.T) {
	inBubble(t, func(m *machine, _ func()) {
		m.drop()
		m.mu.Lock()
		m.preparing = true
		m.mu.Unlock()
		time.Sleep(reconnectAfter)
		want := []string{"1.0" + begins[3:], "1.0 end app within 5s", "1.0 end db within 20s"}
		m.expect(1, true, want...)
		time.Sleep(5 * time.Second)
		m.expect(0, true, append(want, "4.0 end driver within 10s")...)
	})
}

// The machine waits for a kubelet that does not know its pods, but not for ever.
func TestPodsThatAreNotKnown(t *testing.T) {
	inBubble(t, func(m *machine, restart func()) {
		m.learns = time.Hour
		restart()
		m.prepare(true)
		time.Sleep(29 * time.Second)
		m.expect(1, true, begins)
		time.Sleep(2 * time.Second)
		m.expect(0, true, begins)
		if got := m.warned.String(); !strings.Contains(got, "ending those that are known") {
			t.Errorf("it logged %s", got)
		}
	})
}

// On a machine with D-Bus and without logind one warning is logged, however often it is tried.
func TestBusWithoutLogind(t *testing.T) {
	inBubble(t, func(m *machine, restart func()) {
		m.mu.Lock()
		m.absent = true
		m.mu.Unlock()
		restart()
		time.Sleep(10 * time.Minute)
		m.expect(0, false)
		if n := strings.Count(m.warned.String(), "level=WARN"); n != 1 {
			t.Errorf("it warned %d times:\n%s", n, m.warned.String())
		}
	})
}

// A logind that does not accept a longer delay still gives its own delay.
func TestShortDelay(t *testing.T) {
	inBubble(t, func(m *machine, restart func()) {
		m.mu.Lock()
		m.deaf, m.delay = true, 5*time.Second
		m.mu.Unlock()
		restart()
		time.Sleep(10 * time.Second)
		m.expect(1, false)
	})
}
