// Package shutdown ends the pods of a node in order before the machine shuts down.
//
// systemd's logind announces a shutdown, and delays it for holders of an inhibitor lock. A Manager
// with the lock ends pods, those of low priority first, each group within its own time. It waits
// for the volumes of a group before it ends the next one: their drivers may be pods, too. Then it
// releases the lock, and the machine shuts down.
//
// logind's property PreparingForShutdown is authoritative, and a signal the hint to read it. So a
// kubelet that starts during a shutdown continues it, and other programs on the bus cannot start
// one.
//
// It ends no container itself: package pods does. It changes no Node object: its caller asks Begun
// and writes the status when Changed is called.
package shutdown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/logline"
)

// Texts for users. Controllers and dashboards know these words.
const (
	Reason  = "Terminated"
	Message = "Pod was terminated in response to imminent node shutdown."
	// NodeMessage is part of the reason why the node is not ready.
	NodeMessage = "node is shutting down"

	eventReason = "NodeShutdown"
	beganText   = "Shutdown manager detected shutdown event"
	endedText   = "Shutdown manager detected shutdown cancellation"
)

// Pods are the pods of the node.
type Pods interface {
	// Known is closed once Holding lists every pod of the node. A kubelet that has just started
	// gets them from the API server first.
	Known() <-chan struct{}
	// Holding lists the pods of which something is left on the node.
	Holding() []*v1.Pod
	// End has a pod end within a time, even one that is being ended already.
	End(uid types.UID, within time.Duration)
	// Gone reports whether nothing of a pod is left: no container, no volume.
	Gone(uid types.UID) bool
}

// Config configures a Manager.
type Config struct {
	// Periods are those of the configuration; see Periods.
	Periods []Period
	Pods    Pods
	// Released reports whether the API server knows all volumes that the node is rid of: they can
	// be detached then. It may be nil.
	Released func() bool
	// Connect opens a connection to logind.
	Connect func(ctx context.Context) (Logind, error)
	// Changed is called when the result of Begun has changed. It must not block.
	Changed func()
	// NodeEvent records an event of the node.
	NodeEvent func(reason, message string)
	// File keeps when the last shutdown began and ended, for metrics.
	File   string
	Logger *slog.Logger
	Now    func() time.Time // time.Now when nil
}

// Manager follows the machine's shutdown. It is safe for concurrent use.
type Manager struct {
	Config
	began, ended prometheus.Gauge

	// Only Run's goroutine uses these.
	told   string
	lock   *os.File                // nil while there is none, and while pods are ended
	cancel context.CancelCauseFunc // of ending; nil unless a shutdown has begun
	ending sync.WaitGroup

	mu    sync.Mutex
	begun bool
}

// times is the content of the file. A zero time means never.
type times struct {
	Began time.Time `json:"startTime"`
	Ended time.Time `json:"endTime"`
}

// New returns a manager that has not looked yet.
func New(config Config) *Manager {
	if config.Now == nil {
		config.Now = time.Now
	}
	m := &Manager{Config: config,
		began: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_start_time_seconds",
			Help: "When the last graceful shutdown of the node began, in seconds since 1970."}),
		ended: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_end_time_seconds",
			Help: "When the last graceful shutdown of the node had ended its pods, in seconds since 1970."}),
	}
	m.show(m.load())
	return m
}

// Collectors are the manager's metrics.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.began, m.ended}
}

// Begun reports whether the machine goes down.
func (m *Manager) Begun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begun
}

// The pauses before the next attempt: after the connection broke, and without a logind. Many
// machines have none, such as those without systemd.
const (
	reconnectAfter = time.Second
	retryAfter     = 30 * time.Second
)

// Run follows the machine until ctx ends. Without periods it does nothing.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.Periods) == 0 {
		return nil
	}
	defer m.stop(nil)
	for ctx.Err() == nil {
		connected, err := m.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		m.complain(
			"cannot follow logind, so pods get no time to end when this machine goes down; trying again. It takes systemd-logind and D-Bus", err)
		pause := retryAfter
		if connected {
			m.told, pause = "", reconnectAfter
		}
		wait(ctx, pause)
	}
	return nil
}

// complain logs a failure, once for each time that it begins.
func (m *Manager) complain(what string, err error) {
	if text := fmt.Sprint(what, err); text != m.told {
		m.told = text
		logline.Log(m.Logger, slog.LevelWarn, what, "err", err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// follow takes one connection for as long as it stands. connected reports whether there was one.
func (m *Manager) follow(ctx context.Context) (connected bool, err error) {
	logind, err := m.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, logind.Close()) }()
	if err := m.look(ctx, logind, true); err != nil {
		return false, err
	}
	if err := m.allow(ctx, logind); err != nil {
		m.complain("pods may get less time to end than shutdownGracePeriod says", err)
	}
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case _, ok := <-logind.Hints():
			if !ok {
				return true, errors.New("the connection to D-Bus has ended")
			}
		}
		if err := m.look(ctx, logind, false); err != nil {
			return true, err
		}
	}
}

// allow raises logind's longest delay to the sum of the periods.
func (m *Manager) allow(ctx context.Context, logind Logind) error {
	want := total(m.Periods)
	have, err := logind.LongestDelay(ctx)
	if err != nil || have >= want {
		return err
	}
	if err := logind.SetLongestDelay(ctx, want); err != nil {
		return err
	}
	// logind reads its configuration after it has answered.
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		wait(ctx, pause)
		have, err := logind.LongestDelay(ctx)
		if err != nil || have >= want {
			return err
		}
		if pause > 2*time.Second {
			return fmt.Errorf(
				"logind waits for %s at most, and the periods are %s: set InhibitDelayMaxSec in /etc/systemd/logind.conf", have, want)
		}
	}
}

var errCancelled = errors.New("the shutdown was cancelled")

// look reads whether the machine goes down, and acts on it. The first look of a connection takes
// the lock anew. An earlier lock holds until then: logind keeps it while its file is open, even
// without the connection.
func (m *Manager) look(ctx context.Context, logind Logind, first bool) error {
	begun, err := logind.Preparing(ctx)
	if err != nil {
		return err
	}
	if !begun && m.cancel != nil {
		m.stop(errCancelled)
	}
	if !begun && (first || m.lock == nil) {
		lock, refused := logind.Inhibit(ctx)
		if refused == nil {
			m.unlock()
			m.lock = lock
		}
		// The shutdown may have begun meanwhile: either before the lock, which was refused then, or
		// after it, and waits for this lock.
		if begun, err = logind.Preparing(ctx); err != nil {
			return err
		}
		if refused != nil && !begun {
			return refused
		}
	}
	if m.set(begun) {
		text := endedText
		if begun {
			text = beganText
		}
		m.NodeEvent(eventReason, text)
	}
	if begun && m.cancel == nil {
		m.start(ctx)
	}
	return nil
}

// start ends the pods in the background, and then gives the lock to logind. A connection that
// breaks meanwhile changes nothing.
func (m *Manager) start(ctx context.Context) {
	ctx, m.cancel = context.WithCancelCause(ctx)
	lock := m.lock
	m.lock = nil
	m.ending.Go(func() { // ends with the periods, or with ctx
		m.endAll(ctx)
		if lock == nil {
			return
		}
		if err := lock.Close(); err != nil {
			m.Logger.Warn("cannot give the inhibitor lock back; the machine goes down when its time is over", "err",
				err)
		}
	})
}

// stop ends no more pods, and releases the lock.
func (m *Manager) stop(why error) {
	if m.cancel != nil {
		m.cancel(why)
		m.ending.Wait()
		m.cancel = nil
	}
	m.unlock()
}

func (m *Manager) unlock() {
	if m.lock != nil {
		_ = m.lock.Close() // nothing was written to it
		m.lock = nil
	}
}

// set records whether the machine goes down, and returns whether that has changed.
func (m *Manager) set(begun bool) bool {
	m.mu.Lock()
	changed := m.begun != begun
	m.begun = begun
	m.mu.Unlock()
	if changed {
		m.Changed()
	}
	return changed
}

// lookEvery is the interval of checks whether pods are gone.
const lookEvery = 200 * time.Millisecond

// endAll ends all pods, one group after the other.
func (m *Manager) endAll(ctx context.Context) {
	began := m.Now()
	m.save(times{Began: began})
	m.Logger.Info("this machine goes down; ending its pods", "within", total(m.Periods))
	m.awaitKnown(ctx)
	for _, g := range group(m.Periods, m.Pods.Holding()) {
		if len(g.pods) > 0 && ctx.Err() == nil {
			m.endGroup(ctx, g)
		}
	}
	if ctx.Err() != nil {
		m.Logger.Info("no more pods are ended", "reason", context.Cause(ctx))
		return
	}
	m.save(times{Began: began, Ended: m.Now()})
}

// awaitKnown returns when the pods of the node are known. It waits no longer than all periods, as
// does the machine.
func (m *Manager) awaitKnown(ctx context.Context) {
	timer := time.NewTimer(total(m.Periods))
	defer timer.Stop()
	select {
	case <-m.Pods.Known():
	case <-timer.C:
		m.Logger.Warn("the API server has not told the pods of this node in time; ending those that are known",
			"within", total(m.Periods))
	case <-ctx.Done():
	}
}

// endGroup returns when nothing of the group is left, or its time is over.
func (m *Manager) endGroup(ctx context.Context, g groupOf) {
	deadline := m.Now().Add(g.Within)
	for _, pod := range g.pods {
		within := g.Within
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			within = min(within, time.Duration(*own)*time.Second)
		}
		m.Pods.End(pod.UID, within)
	}
	for {
		var left []string
		for _, pod := range g.pods {
			if !m.Pods.Gone(pod.UID) {
				left = append(left, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(left) == 0 && (m.Released == nil || m.Released()) {
			return
		}
		now := m.Now()
		if !now.Before(deadline) {
			if len(left) > 0 {
				m.Logger.Warn("pods have not ended within the time that a shutdown of the machine leaves them",
					"priority", g.Priority, "within", g.Within, "pods", left)
			}
			return
		}
		wait(ctx, min(lookEvery, deadline.Sub(now)))
		if ctx.Err() != nil {
			return
		}
	}
}

func (m *Manager) show(t times) {
	set := func(g prometheus.Gauge, at time.Time) {
		g.Set(0)
		if !at.IsZero() {
			g.Set(float64(at.Unix()))
		}
	}
	set(m.began, t.Began)
	set(m.ended, t.Ended)
}

func (m *Manager) save(t times) {
	m.show(t)
	raw, err := json.Marshal(t)
	if err == nil {
		err = atomicfile.Write(m.File, raw, 0o644)
	}
	if err != nil {
		m.Logger.Warn("cannot note the time of the shutdown for metrics", "err", err)
	}
}

func (m *Manager) load() (t times) {
	raw, err := os.ReadFile(m.File)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.Logger.Warn("cannot read when the machine was last shut down; metrics say never", "err", err)
		return times{}
	}
	return t
}
