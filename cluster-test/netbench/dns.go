package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const clusterDomain = "cluster.local"

// corefile is kubeadm's, as far as it is about the cluster's own names.
const corefile = `.:53 {
    bind %s
    errors
    kubernetes %s in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    cache 30 {
        disable success %[2]s
        disable denial %[2]s
    }
    loadbalance
}
`

// question is one to a DNS server, and the right answer.
type question struct {
	kind    int // of kinds
	name    string
	of      uint16
	rcode   int
	answers int
}

// kinds are the kinds of questions, each as frequent as the others.
var kinds = []string{"services", "headless services", "names that do not exist", "names outside, by the search path"}

// searched are the domains that a resolver appends to a name outside of the cluster before it asks
// for the name itself.
var searched = []string{namespace + ".svc." + clusterDomain, "svc." + clusterDomain, clusterDomain}

// ask makes up question number n, for an IPv4 address and an IPv6 address in turn, as resolvers do.
func ask(n, services int, random *rand.Rand) question {
	q := question{kind: n % len(kinds), of: dns.TypeA, rcode: dns.RcodeSuccess}
	if n/len(kinds)%2 == 1 {
		q.of = dns.TypeAAAA
	}
	i := random.IntN(services)
	i -= i % headlessEach // a headless one
	q.name = serviceName(i) + "." + searched[0]
	switch q.kind {
	case 0:
		q.name, q.answers = serviceName(i+1+random.IntN(headlessEach-1))+"."+searched[0], 1
	case 1:
		q.answers = endpoints
	case 2:
		q.name, q.rcode = "no-"+q.name, dns.RcodeNameError
	case 3:
		q.name, q.rcode = fmt.Sprintf("www%d.example.com.%s", i, searched[random.IntN(len(searched))]),
			dns.RcodeNameError
	}
	if q.of == dns.TypeAAAA {
		q.answers = 0
	}
	q.name = dns.Fqdn(q.name)
	return q
}

// check looks at the answer.
func (q question) check(reply *dns.Msg) error {
	if reply.Rcode != q.rcode || len(reply.Answer) != q.answers {
		return fmt.Errorf("%s %s: %s with %d answers, want %s with %d", q.name, dns.TypeToString[q.of],
			dns.RcodeToString[reply.Rcode], len(reply.Answer), dns.RcodeToString[q.rcode], q.answers)
	}
	return nil
}

func measureDNS(ctx context.Context, o options) error {
	o.names -= o.names % headlessEach
	coredns := built(ctx, o, "coredns")
	return withFeed(ctx, func(f *feed) error {
		progress("creating %d services with %d endpoints", o.names, o.names*endpoints)
		var all []object
		for i := range o.names {
			all = append(all, numbered(i, i%headlessEach == 0))
		}
		if _, err := f.create(ctx, all); err != nil {
			return err
		}
		own, err := os.Executable()
		if err != nil {
			return err
		}
		config := filepath.Join(f.work, "Corefile")
		if err := os.WriteFile(config, fmt.Appendf(nil, corefile, dnsAddress.Addr(), clusterDomain, f.kubeconfig),
			0o600); err != nil {
			return err
		}
		var theirs, ours []figures
		for i := range o.repeats {
			progress("DNS, %d of %d", i+1, o.repeats)
			if coredns != "" {
				run, err := f.dnsRun(ctx, o, "coredns", coredns, "-conf", config)
				if err != nil {
					return err
				}
				theirs = append(theirs, run)
			}
			run, err := f.dnsRun(ctx, o, "barque-dns", own, serveDNS, f.kubeconfig)
			if err != nil {
				return err
			}
			ours = append(ours, run)
		}
		table(fmt.Sprintf("DNS, %d services with %d endpoints", o.names, o.names*endpoints), "CoreDNS", theirs, ours)
		return nil
	})
}

// clients is how many ask, each with a socket of its own and one question at a time.
const clients = 16

// dnsRun measures a DNS server once.
func (f *feed) dnsRun(ctx context.Context, o options, name, program string, args ...string) (run figures, err error) {
	s, p, end, err := f.begin(name, program, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	conns, err := s.askers(dnsAddress)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	// The last of each kind: all that lists have.
	last := rand.New(rand.NewPCG(1, 1))
	err = p.Await(ctx, func() error {
		for kind := range kinds {
			if _, err := exchange(conns[0], ask(kind, o.names, last)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	run.add("from the start until all is answered, s", time.Since(p.Began).Seconds())
	before, err := p.Use()
	if err != nil {
		return nil, err
	}
	asked, err := load(ctx, o, conns)
	if err != nil {
		return nil, err
	}
	after, err := p.Use()
	if err != nil {
		return nil, err
	}
	var all []time.Duration
	for kind, name := range kinds {
		run.times(name, asked.took[kind], time.Millisecond, "ms")
		all = append(all, asked.took[kind]...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s answered nothing: %w", name, asked.wrong)
	}
	run.times("all", all, time.Millisecond, "ms")
	run.add("answers a second", float64(len(all))/asked.lasted.Seconds())
	run.add("no answer, or a wrong one", float64(asked.failed))
	run.add("CPU s for 1,000 questions", (after.CPU-before.CPU).Seconds()*1000/float64(len(all)))
	run.add("memory, MiB", after.Anonymous)
	if asked.wrong != nil {
		progress("%s: %v", name, asked.wrong)
	}
	return run, nil
}

// askers are connections from the client's namespace.
func (s *site) askers(to netip.AddrPort) (conns []*dns.Conn, err error) {
	err = s.client.Do(func() error {
		for range clients {
			conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			conns = append(conns, &dns.Conn{Conn: conn})
		}
		return nil
	})
	return conns, err
}

// patience is how long an answer is waited for.
const patience = 2 * time.Second

// exchange asks and waits for the right answer.
func exchange(conn *dns.Conn, q question) (took time.Duration, err error) {
	query := new(dns.Msg).SetQuestion(q.name, q.of)
	began := time.Now()
	if err := conn.SetDeadline(began.Add(patience)); err != nil {
		return 0, err
	}
	if err := conn.WriteMsg(query); err != nil {
		return 0, err
	}
	for {
		reply, err := conn.ReadMsg()
		if err != nil {
			return 0, err
		}
		if reply.Id == query.Id { // not that of a question that was given up
			return time.Since(began), q.check(reply)
		}
	}
}

// asked is the outcome of a load.
type asked struct {
	took   [][]time.Duration // by kind
	failed int
	wrong  error // one of the failures
	lasted time.Duration
}

// load asks at the rate, whether answers come or not: a question that had to wait because its
// client waited for an answer has waited for that, too.
func load(ctx context.Context, o options, conns []*dns.Conn) (asked, error) {
	total := asked{took: make([][]time.Duration, len(kinds))}
	gap := time.Second / time.Duration(o.rate)
	began := time.Now()
	var mu sync.Mutex
	var group sync.WaitGroup
	for c, conn := range conns {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 2))
			timer := time.NewTimer(0)
			defer timer.Stop()
			for n := c; ; n += len(conns) {
				due := began.Add(time.Duration(n) * gap)
				late := time.Since(due)
				if due.Sub(began) >= o.each {
					return
				}
				if late < 0 {
					timer.Reset(-late)
					select {
					case <-timer.C:
					case <-ctx.Done():
						return
					}
					late = 0
				}
				q := ask(n/len(conns), o.names, random)
				took, err := exchange(conn, q)
				mu.Lock()
				if err != nil {
					total.failed, total.wrong = total.failed+1, err
				} else {
					total.took[q.kind] = append(total.took[q.kind], late+took)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	total.lasted = time.Since(began)
	return total, ctx.Err()
}
