package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/faultrun/clusterrun"
	"github.com/barque/barque/cluster-test/neighbours"
	"github.com/barque/barque/cluster-test/schedule"
)

const (
	servers = 3
	agents  = 1
	// services is the number of Services; every third one has an address of each family.
	services = 6
	// diskMegabytes is room for some times the size of a server's data.
	diskMegabytes = 512
	// patience is how long anything may take that takes seconds on an idle machine.
	patience = 3 * time.Minute
	// namespace is where the Services are.
	namespace = "addresses"

	pool = `
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: lan}
spec: {addresses: [198.51.100.64/27, "2001:db8:51::100/120"]}
`
)

// The API's addresses are no machine's. ARP and neighbour discovery need no network in common.
var apiAddresses = []netip.Addr{netip.MustParseAddr("198.18.0.10"), netip.MustParseAddr("2001:db8:18::10")}

// run is one run.
type run struct {
	clusterrun.Run
	cfg     config
	watcher *neighbours.Watcher
	addrs   []netip.Addr      // all, those of the API first
	macs    map[string]string // of the nodes
	told    int               // faults of the judge that were reported
	results []result
}

// result is what the watcher saw at one fault.
type result struct {
	fault     fault
	note      string
	api, most time.Duration // the longest time without an answer: of the API's addresses, of Services'
	late      time.Duration // of the watcher itself
	excuse    string        // why the machine is at fault for a long time; "" if it is not
}

// execute makes a run. It returns nil when there was no cluster to break.
func execute(ctx context.Context, cfg config) (*run, error) {
	options := clustertest.Options{Servers: servers, Agents: agents, Families: "ipv4,ipv6",
		DiskMegabytes: diskMegabytes}
	for _, a := range apiAddresses {
		options.ServerArgs = append(options.ServerArgs, "--api-address="+a.String())
	}
	r := &run{cfg: cfg}
	r.Start(cfg.out)
	began := false
	err := r.On(ctx, "addresschaos", options, 2*patience, r.begin, func(ctx context.Context) {
		began = true
		r.work(ctx)
	})
	if !began {
		return nil, err
	}
	return r, err
}

// work makes faults one after the other.
func (r *run) work(ctx context.Context) {
	defer r.watcher.Close()
	r.Say("%d addresses are answered for; faults begin", len(r.addrs))
	for number := 0; ctx.Err() == nil && !r.Failed() && !r.cfg.Over(number, r.Elapsed()); number++ {
		r.inject(ctx, number)
	}
}

// begin makes the pool and the Services, and begins to watch.
func (r *run) begin(ctx context.Context) (err error) {
	if err := clustertest.Poll(ctx, patience, r.Cluster.Healthy); err != nil {
		return fmt.Errorf("a whole cluster: %w", err)
	}
	r.macs = map[string]string{}
	for _, n := range r.Cluster.Nodes() {
		if r.macs[n], err = r.Cluster.MAC(n); err != nil {
			return err
		}
	}
	if err := clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		return r.Cluster.KubectlResult(ctx, pool, "apply", "-f", "-").Error
	}); err != nil {
		return fmt.Errorf("make the pool: %w", err)
	}
	client := r.Cluster.Client.CoreV1()
	if _, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		return err
	}
	class, families := "barque.io/pool", corev1.IPFamilyPolicyRequireDualStack
	for i := range services {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
				Ports: []corev1.ServicePort{{Port: 80}}}}
		if i%3 == 0 {
			s.Spec.IPFamilyPolicy = &families
		}
		if _, err := client.Services(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	err = clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		r.addrs = slices.Clone(apiAddresses)
		list, err := client.Services(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			if len(s.Status.LoadBalancer.Ingress) < len(s.Spec.IPFamilies) {
				return fmt.Errorf("the Service %s has the addresses %v", s.Name, s.Status.LoadBalancer.Ingress)
			}
			for _, in := range s.Status.LoadBalancer.Ingress {
				r.addrs = append(r.addrs, netip.MustParseAddr(in.IP))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.watcher, err = neighbours.Watch("bq-" + r.Cluster.ID); err != nil {
		return err
	}
	r.watcher.Ask(r.addrs...)
	if err := clustertest.Poll(ctx, patience, r.answered); err != nil {
		r.watcher.Close()
		return fmt.Errorf("one machine answers for each address: %w", err)
	}
	return nil
}

// answered is nil when each address was answered for just now.
func (r *run) answered(context.Context) error {
	var errs []error
	for _, addr := range r.addrs {
		if mac, at := r.watcher.Holder(addr); mac == "" || time.Since(at) > time.Second { // brief: a hundred answers
			errs = append(errs, fmt.Errorf("nobody answers for %v; the last answer was at %s", addr,
				at.Format(time.StampMilli)))
		}
	}
	return errors.Join(errs...)
}

// betweenFaults is how long all is well.
const betweenFaults = time.Second

// inject makes one fault, waits until the cluster is whole, and records it.
func (r *run) inject(ctx context.Context, number int) {
	f := r.cfg.At(number)
	// A fault is mended to its end also when ctx ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	t := &trial{run: r, rnd: r.cfg.Rand(fmt.Sprintf("fault %d", number))}
	schedule.Pause(ctx, betweenFaults)
	if err := t.aim(ctx); err != nil {
		r.Fail("before %s: %v", f.name, err)
		return
	}
	r.watcher.Gaps(time.Now())
	r.watcher.Late()
	began, before := time.Now(), r.load()
	err := errors.Join(f.run(ctx, t), t.Cluster.Lose())
	if err == nil {
		err = clustertest.Poll(ctx, patience, r.answered)
	}
	after := time.Now()
	excuse := r.load().excuse(before, after.Sub(began))
	if err == nil {
		err = clustertest.Poll(ctx, patience, r.Cluster.Healthy)
	}
	if err == nil {
		err = clustertest.Poll(ctx, patience, r.answered)
	}
	if err != nil {
		r.Fail("%s: %s: %v", f.name, t.note, err)
	}
	seen := result{fault: f, note: t.leader + " led; " + t.note, late: r.watcher.Late(),
		excuse: excuse}
	for addr, gap := range r.watcher.Gaps(time.Now()) {
		if slices.Contains(apiAddresses, addr) {
			seen.api = max(seen.api, gap)
		} else {
			seen.most = max(seen.most, gap)
		}
	}
	r.results = append(r.results, seen)
	r.judge(seen)
	r.Say("%d %s: %s; without an answer: API %v, Services %v; answered after %v, whole after %v", number+1, f.name,
		seen.note, round(seen.api), round(seen.most), round(after.Sub(began)), round(time.Since(began)))
}

// load is how the machine has kept the nodes waiting since they were started.
type load struct {
	cpu   map[string]time.Duration // for a CPU, of all threads together
	disks int                      // times that a disk did not answer
}

func (r *run) load() load {
	l := load{cpu: map[string]time.Duration{}}
	for _, n := range r.Cluster.Nodes() {
		l.cpu[n] = r.Cluster.CPUWait(n)
		data, err := os.ReadFile(r.Cluster.LogFile(n))
		if err == nil {
			l.disks += bytes.Count(data, []byte("the disk hangs"))
		}
	}
	return l
}

// excuse returns why a machine that kept the nodes waiting may be at fault for a long time without
// an answer. docs/edge.md states times of machines that are not short of CPU.
func (l load) excuse(before load, since time.Duration) string {
	for node, wait := range l.cpu {
		// A process that was started meanwhile begins at zero.
		if waited := wait - before.cpu[node]; waited > since/4 {
			return fmt.Sprintf("the threads of %s have waited for a CPU for %v of %v", node, round(waited),
				round(since))
		}
	}
	if l.disks > before.disks {
		return "the disk of a node did not answer"
	}
	return ""
}

// starved is by how much the watcher may be late before its figures say nothing about the cluster.
const starved = 150 * time.Millisecond

// judge fails the run for what the watcher has seen.
func (r *run) judge(seen result) {
	faults := r.watcher.Faults()
	for _, text := range faults[r.told:] {
		for node, mac := range r.macs {
			text = strings.ReplaceAll(text, mac, node)
		}
		r.Fail("after %s: %s: %s", seen.fault.name, seen.note, text)
	}
	r.told = len(faults)
	if longest := max(seen.api, seen.most); r.cfg.strict && seen.fault.stated > 0 && longest > seen.fault.stated {
		if seen.late > starved {
			seen.excuse = fmt.Sprintf("the watcher itself was %v late", round(seen.late))
		}
		if seen.excuse != "" {
			r.Say("%s: %v without an answer is not judged: %s", seen.fault.name, round(longest), seen.excuse)
			return
		}
		r.Fail("%s: %s: nobody answered for %v, and docs/edge.md states %v", seen.fault.name, seen.note, round(longest),
			seen.fault.stated)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
