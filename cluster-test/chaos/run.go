package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/chaos/evictions"
	"github.com/barque/barque/cluster-test/chaos/traces"
	"github.com/barque/barque/cluster-test/faultrun/clusterrun"
	"github.com/barque/barque/verify"
)

const (
	servers = 3
	agents  = 2
	// diskMegabytes is room for some times the size of a server's data.
	diskMegabytes = 768
	// patience is how long anything may take that takes seconds on an idle machine. A machine that
	// is busy with other things must not fail a run.
	patience = 3 * time.Minute
	// failedPatience is how long the clients of a run that has failed may take to end.
	failedPatience = 20 * time.Second
	// namespace is where everything of the workloads is.
	namespace = "chaos"

	// How long a node that shows no life counts as alive, and how long pods stay on it after that.
	monitorGrace = 10 * time.Second
	toleration   = 5
)

var serverArgs = []string{
	"--node-monitor-period=1s",
	"--node-monitor-grace-period=" + monitorGrace.String(),
	fmt.Sprintf("--default-unreachable-toleration-seconds=%d", toleration),
	"--node-eviction-rate=10",
	"--raft-snapshot-entries=500", // so that there are some to damage, and servers that lag need them
}

// run is one run.
type run struct {
	clusterrun.Run
	cfg      config
	servers  []verify.Server
	probe    *verify.Probe // of this turn
	pods     *pods
	watchers *informerSet
	traces   *traces.Nodes

	evictions *evictions.Judge
	told      []*podHistory // of each server's watch

	mu       sync.Mutex
	damaging bool // the fault that is on may make a server's state wrong
	// podChanges has the number of changes that each server's watch of pods has reported, when
	// these have ended.
	podChanges []int
	acked      int // writes of probes that have ended
	calls      int // of the judged clients
}

// execute makes a run. It returns nil when there was no cluster to break.
func execute(ctx context.Context, cfg config) (*run, error) {
	options := clustertest.Options{Servers: servers, Agents: agents, ServerArgs: serverArgs,
		DiskMegabytes: diskMegabytes}
	r := &run{cfg: cfg, evictions: evictions.New(monitorGrace, toleration*time.Second)}
	r.Start(cfg.out)
	began := false
	err := r.On(ctx, "chaos", options, 2*patience, r.begin, func(ctx context.Context) {
		began = true
		r.work(ctx)
	})
	if !began {
		return nil, err
	}
	return r, err
}

// begin finds the servers and starts the clients and watchers that run all the time.
func (r *run) begin(ctx context.Context) (err error) {
	config, err := clientcmd.BuildConfigFromFlags("", r.Cluster.Kubeconfig())
	if err != nil {
		return err
	}
	status, err := r.Cluster.Status(ctx)
	if err != nil {
		return err
	}
	for _, m := range status.Members {
		if m.Role != "server" {
			continue
		}
		s, err := verify.NewServer(m.Name, "https://"+m.Address+":6443", config)
		if err != nil {
			return err
		}
		r.servers = append(r.servers, s)
	}
	slices.SortFunc(r.servers, func(a, b verify.Server) int { return strings.Compare(a.Name, b.Name) })
	if r.traces, err = traces.New(r.Cluster); err != nil {
		return err
	}
	if _, err := r.Cluster.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if r.pods, err = r.startPods(ctx); err != nil {
		return fmt.Errorf("start pods: %w", err)
	}
	r.Start(r.cfg.out) // from here on there is something to see
	r.Say("a cluster of %d servers and %d agents runs, with its pods", servers, agents)
	return nil
}

// faultsPerTurn is how many faults one judged workload sees. It must not grow with the length of
// the run.
const faultsPerTurn = 5

// work runs clients and faults in turns, and checks in the end.
func (r *run) work(ctx context.Context) {
	// The clients and watchers end by themselves, in order, also when ctx ends.
	background := context.WithoutCancel(ctx)
	r.watchers = r.startInformers(background)
	defer r.watchers.stop()
	defer r.pods.stop()
	defer r.lookOut(background)()
	number, turns := 0, 0
	for more := true; more && !r.Failed(); turns++ {
		if r.cfg.At(number).alone {
			r.inject(number)
			number++
			more = !r.over(ctx, number)
			continue
		}
		more = r.turn(ctx, turns, &number)
	}
	if !r.Failed() {
		r.finish(background)
	}
}

// lookOut begins the checks that run all the time, and returns the function that ends them.
func (r *run) lookOut(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { r.watchStates(ctx) })
	for _, s := range r.servers {
		h := &podHistory{server: s.Name}
		r.told = append(r.told, h)
		running.Go(func() { r.watchPods(ctx, s, h) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// over reports whether there is no next fault.
func (r *run) over(ctx context.Context, number int) bool {
	return ctx.Err() != nil || r.cfg.Over(number, r.Elapsed())
}

// turn makes some faults, one at least if nothing has failed, while a workload runs, judges that,
// and reports whether there are more.
func (r *run) turn(ctx context.Context, turn int, number *int) (more bool) {
	background := context.WithoutCancel(ctx)
	began := r.Elapsed()
	r.probe = verify.NewProbe(r.servers, namespace, fmt.Sprintf("probe-%d", turn))
	r.probe.Observe = r.observer(false)
	r.probe.Start(background)
	w, err := verify.Start(background, verify.Config{
		Servers: r.servers, Namespace: namespace, Run: fmt.Sprintf("turn-%d", turn), Seed: r.cfg.Seed + uint64(turn),
		Observe: r.observer(true),
	})
	if err != nil {
		r.Fail("start the clients: %v", err)
		return false
	}
	for n := 0; n < faultsPerTurn && !r.Failed(); n++ {
		if n > 0 && (r.over(ctx, *number) || r.cfg.At(*number).alone) {
			break
		}
		r.inject(*number)
		*number++
	}
	bear := patience
	if r.Failed() { // a broken cluster stays so: it is not waited for
		bear = failedPatience
	}
	verdict, err := w.Stop(background, bear)
	r.Writing(began)
	probed, probeErr := r.probe.Stop(background, bear)
	if err := errors.Join(err, probeErr); err != nil {
		r.Fail("end the clients: %v", err)
	}
	r.Say("judged: %v", verdict)
	r.mu.Lock()
	r.acked, r.calls = r.acked+probed.Acknowledged, r.calls+verdict.Calls
	r.mu.Unlock()
	for _, v := range slices.Concat(verdict.Violations, probed.Violations) {
		r.Fail("%s", v)
	}
	// The cluster was whole when the clients ended: a fault that stays then is a failure.
	for _, u := range slices.Concat(verdict.Unjudged, probed.Unjudged) {
		r.Fail("this could not be judged, and is no broken promise by itself: %s", u)
	}
	return !r.Failed() && !r.over(ctx, *number)
}

// observer returns a function that notes writes for the report.
func (r *run) observer(aside bool) func(server string, begin, end time.Time, ok bool) {
	return func(server string, begin, end time.Time, ok bool) { r.Wrote(server, begin, end, ok, aside) }
}
