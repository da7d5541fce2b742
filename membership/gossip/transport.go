package gossip

import (
	"log/slog"
	"net"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/internal/connlimit"
)

// streamLimits bound the TCP connections of all machines to the gossip port, and their bytes. A
// member needs one for some milliseconds, and memberlist closes each after its TCPTimeout. The
// state of 5,000 members takes some 3 MiB.
var streamLimits = connlimit.Limits{Total: 256, PerSource: 64, Bytes: 32 << 20}

// transport is memberlist's, with a bound on its TCP connections: any machine may open one, and
// memberlist reads up to 20 MiB of each before it knows the sender, because the whole of a state is
// encrypted as one.
type transport struct {
	*memberlist.NetTransport
	limiter *connlimit.Limiter
	streams chan net.Conn
	done    chan struct{} // closed when no connections are taken any more
	ended   chan struct{} // closed when no more come
	stop    sync.Once
	running sync.WaitGroup
}

// newTransport listens at the address of the configuration.
func newTransport(mc *memberlist.Config, logger *slog.Logger) (*transport, error) {
	plain, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{mc.BindAddr}, BindPort: mc.BindPort, Logger: mc.Logger, MetricLabels: mc.MetricLabels,
	})
	if err != nil {
		return nil, err
	}
	t := &transport{NetTransport: plain, limiter: connlimit.New(streamLimits, logger), streams: make(chan net.Conn),
		done: make(chan struct{}), ended: make(chan struct{})}
	t.running.Go(t.admit) // ends with Shutdown
	return t, nil
}

// admit hands connections on. memberlist's listener waits for it, so it takes them until that has
// ended.
func (t *transport) admit() {
	for {
		select {
		case <-t.ended:
			return
		case plain := <-t.NetTransport.StreamCh():
			conn := t.limiter.Enter(plain)
			select {
			case t.streams <- conn:
			case <-t.done:
				_ = conn.Close()
			}
		}
	}
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport. memberlist shuts a transport down that it could not
// use, so there may be a second call.
func (t *transport) Shutdown() (err error) {
	t.stop.Do(func() {
		close(t.done)
		err = t.NetTransport.Shutdown()
		close(t.ended)
		t.running.Wait()
	})
	return err
}

// create opens the port, with the bound on connections unless mc has a transport of its own or a
// port of the kernel's choice, as tests have.
func create(mc *memberlist.Config, logger *slog.Logger) (*memberlist.Memberlist, *transport, error) {
	if mc.Transport != nil || mc.BindPort == 0 {
		list, err := memberlist.Create(mc)
		return list, nil, err
	}
	t, err := newTransport(mc, logger)
	if err != nil {
		return nil, nil, err
	}
	mc.Transport = t
	list, err := memberlist.Create(mc)
	if err != nil {
		_ = t.Shutdown() // Create's error is the cause
	}
	return list, t, err
}
