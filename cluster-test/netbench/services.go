package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/program"
)

// kubeProxyConfig is a KubeProxyConfiguration. The limits of connection tracking are the
// machine's, not those of a network namespace. All else is as upstream has it.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
hostnameOverride: %q
clusterCIDR: %q
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// services are the Services that the proxies serve, as their number grows.
type services struct {
	*feed
	addrs []netip.Addr // all but changing's
	// changing has one endpoint: changes[now].
	changing netip.Addr
	slice    *discoveryv1.EndpointSlice
	now      int
}

func measureServices(ctx context.Context, o options) error {
	kubeProxy := built(ctx, o, "kube-proxy")
	return withFeed(ctx, func(f *feed) error {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		config := filepath.Join(f.work, "kube-proxy.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, kubeProxyConfig, f.kubeconfig, nodeName, podNetwork),
			0o600); err != nil {
			return err
		}
		all := &services{feed: f}
		for _, size := range o.sizes {
			if err := all.grow(ctx, size); err != nil {
				return err
			}
			var theirs, ours []figures
			for i := range o.repeats {
				progress("%d services, %d of %d", size, i+1, o.repeats)
				if kubeProxy != "" {
					run, err := all.run(ctx, o, "kube-proxy", kubeProxy, "--config", config)
					if ctx.Err() != nil {
						return err
					}
					if err != nil {
						fmt.Printf("\nkube-proxy is not measured any more: %v\n", err)
						kubeProxy, theirs = "", nil
					} else {
						theirs = append(theirs, run)
					}
				}
				run, err := all.run(ctx, o, "barque-proxy", own, serveProxy, f.kubeconfig)
				if err != nil {
					return err
				}
				ours = append(ours, run)
			}
			table(fmt.Sprintf("%d services with %d endpoints", size, (size-1)*endpoints+1), "kube-proxy", theirs, ours)
		}
		return nil
	})
}

// grow creates services until there are so many.
func (s *services) grow(ctx context.Context, size int) error {
	progress("creating services until there are %d", size)
	if s.slice == nil {
		o := named(changing, false, changes[s.now])
		addrs, err := s.create(ctx, []object{o})
		if err != nil {
			return err
		}
		s.changing = addrs[0]
		if s.slice, err = s.DiscoveryV1().EndpointSlices(namespace).Get(ctx, changing,
			metav1.GetOptions{}); err != nil {
			return err
		}
	}
	var more []object
	for i := len(s.addrs); i < size-1; i++ {
		more = append(more, numbered(i, false))
	}
	addrs, err := s.create(ctx, more)
	s.addrs = append(s.addrs, addrs...)
	return err
}

// begin starts a program on the node of a new site, fed by the API server. end stops it and
// removes the site.
func (f *feed) begin(name, path string, args ...string) (s *site, p *program.Program, end func() error, err error) {
	if s, err = newSite(); err != nil {
		return nil, nil, nil, err
	}
	closeFeed, err := f.open(s.node)
	if err != nil {
		return nil, nil, nil, errors.Join(err, s.close())
	}
	if p, err = program.Start(s.node.Do, f.work, name, exec.Command(path, args...)); err != nil {
		return nil, nil, nil, errors.Join(err, closeFeed(), s.close())
	}
	return s, p, func() error { return errors.Join(p.Stop(), closeFeed(), s.close()) }, nil
}

// How the ways are measured: connections one after the other, and as many as go by callers at
// once, so long.
const (
	oneByOne = 2000
	callers  = 8
	rush     = 3 * time.Second
)

// pause lies between two changes. kube-proxy does not begin with the second of two changes before
// a second is over.
const pause = 2 * time.Second

// run measures a proxy once.
func (s *services) run(ctx context.Context, o options, name, program string, args ...string) (run figures, err error) {
	site, p, end, err := s.begin(name, program, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	closeBackends, err := site.answering()
	if err != nil {
		return nil, err
	}
	defer closeBackends()

	targets := []netip.AddrPort{netip.AddrPortFrom(s.changing, servicePort)}
	for _, addr := range s.addrs {
		targets = append(targets, netip.AddrPortFrom(addr, servicePort))
	}
	err = p.Await(ctx, func() error {
		return site.client.Do(
			func() error { return errors.Join(leadsSomewhere(targets[0]), leadsSomewhere(targets[len(targets)-1])) })
	})
	if err != nil {
		return nil, err
	}
	run.add("from the start until the first packets pass, s", time.Since(p.Began).Seconds())
	first, err := p.Use()
	if err != nil {
		return nil, err
	}
	run.add("CPU s of that", first.CPU.Seconds())

	direct := []netip.AddrPort{netip.AddrPortFrom(changes[0], backendPort)}
	for _, way := range []struct {
		name    string
		targets []netip.AddrPort
	}{{"connect without a service", direct}, {"connect by a service", targets}} {
		took, err := site.oneByOne(ctx, way.targets)
		if err != nil {
			return nil, err
		}
		run.times(way.name, took, time.Microsecond, "µs")
	}
	rate, err := site.rush(ctx, targets)
	if err != nil {
		return nil, err
	}
	run.add("connections a second", rate)

	before, err := p.Use()
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range o.changes {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		one, err := s.change(ctx, site)
		if err != nil {
			return nil, err
		}
		took = append(took, one)
	}
	after, err := p.Use()
	if err != nil {
		return nil, err
	}
	run.add("from a change until packets follow, median, ms", float64(percentile(took, 50))/1e6)
	run.add("the same, longest, ms", float64(slices.Max(took))/1e6)
	run.add("CPU ms for a change", (after.CPU-before.CPU).Seconds()*1000/float64(o.changes))
	run.add("memory, MiB", after.Anonymous)
	return run, nil
}

// leadsSomewhere is an error while a connection does not reach a backend. It is called in the
// client's namespace.
func leadsSomewhere(to netip.AddrPort) error {
	_, err := leadsTo(to)
	return err
}

// leadsTo returns which backend a new connection reaches.
func leadsTo(to netip.AddrPort) (netip.Addr, error) {
	c, err := connect(to)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := c.answered()
	return addr, errors.Join(err, c.close())
}

// oneByOne connects to one target after the other, chosen at random.
func (s *site) oneByOne(ctx context.Context, targets []netip.AddrPort) (took []time.Duration, err error) {
	err = s.client.Do(func() error {
		for range oneByOne {
			to := targets[rand.IntN(len(targets))]
			began := time.Now()
			c, err := connect(to)
			if err != nil {
				return err
			}
			took = append(took, time.Since(began))
			if err := errors.Join(c.close(), ctx.Err()); err != nil {
				return err
			}
		}
		return nil
	})
	return took, err
}

// rush connects as often as it can, and returns how often in a second.
func (s *site) rush(ctx context.Context, targets []netip.AddrPort) (float64, error) {
	counts, failures := make([]int, callers), make([]error, callers)
	began := time.Now()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			failures[i] = s.client.Do(func() error {
				for time.Since(began) < rush {
					c, err := connect(targets[rand.IntN(len(targets))])
					if err == nil {
						err = c.close()
					}
					if err := errors.Join(err, ctx.Err()); err != nil {
						return err
					}
					counts[i]++
				}
				return nil
			})
		})
	}
	all.Wait()
	lasted := time.Since(began)
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / lasted.Seconds(), errors.Join(failures...)
}

// lookEach is how exactly it is known when packets follow a change.
const lookEach = time.Millisecond

// followLimit is how long packets may take to follow.
const followLimit = 2 * time.Minute

// change changes an endpoint in the API, and returns how long it took from then until a packet
// went to the new one.
func (s *services) change(ctx context.Context, site *site) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, followLimit)
	defer cancel()
	next := 1 - s.now
	followed := make(chan time.Time, 1)
	looking := make(chan error, 1)
	go func() { // ends with ctx at the latest
		looking <- site.client.Do(func() error {
			ticks := time.NewTicker(lookEach)
			defer ticks.Stop()
			for {
				addr, err := leadsTo(netip.AddrPortFrom(s.changing, servicePort))
				if err == nil && addr == changes[next] {
					followed <- time.Now()
					return nil
				}
				select {
				case <-ticks.C:
				case <-ctx.Done():
					return fmt.Errorf("no packet has followed a change of an endpoint: %w", errors.Join(ctx.Err(), err))
				}
			}
		})
	}()
	began := time.Now()
	slice := s.slice.DeepCopy()
	slice.Endpoints[0].Addresses = []string{changes[next].String()}
	updated, err := s.DiscoveryV1().EndpointSlices(namespace).Update(ctx, slice, metav1.UpdateOptions{})
	if err != nil {
		cancel()
		return 0, errors.Join(err, <-looking)
	}
	s.slice, s.now = updated, next
	if err := <-looking; err != nil {
		return 0, err
	}
	return (<-followed).Sub(began), nil
}
