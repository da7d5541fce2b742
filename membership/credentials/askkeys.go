package credentials

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
)

const (
	// fetchTimeout bounds how long one server is asked.
	fetchTimeout = 5 * time.Second
	// askNext is after how long without an answer the next server is asked beside it. Machines that
	// are gone swallow what is sent to them, and most that a node has ever known may be gone.
	askNext = 250 * time.Millisecond
)

// keysAnswer is what a server has answered, or why it has not.
type keysAnswer struct {
	place int // of the server among those that are asked
	name  string
	keys  join.GossipKeys
	err   error
}

// FetchKeys asks the servers, each address once, for gossip keys of at least the generation. What
// one of the node's own cluster says counts first, in whichever order they are asked and answer.
// The successor of the cluster is returned only when nobody who answers may be of that: of a
// cluster that is well, a server may have been recovered by mistake.
func FetchKeys(ctx context.Context, servers []join.Server, generation uint64, ask func(context.Context, join.Server) (join.GossipKeys, error)) (join.GossipKeys, error) {
	servers = distinct(servers)
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // who has not answered by then is not needed
	answers := make(chan keysAnswer, len(servers))
	heard := heardKeys{wanted: generation, failed: errors.New("no other server is known")}
	turn := time.NewTimer(0)
	defer turn.Stop()
	for asked, answered := 0, 0; answered < len(servers); {
		next := turn.C
		if asked == len(servers) {
			next = nil
		}
		select {
		case <-next:
		case a := <-answers:
			if answered++; heard.add(a) {
				return a.keys, nil
			}
			if asked == len(servers) {
				continue
			}
		}
		place, server := asked, servers[asked]
		asking.Go(func() {
			keys, err := ask(ctx, server)
			answers <- keysAnswer{place, server.Name, keys, err}
		})
		asked++
		turn.Reset(askNext)
	}
	return heard.verdict()
}

// distinct leaves out servers at an address that was named before.
func distinct(servers []join.Server) []join.Server {
	var out []join.Server
	named := map[netip.AddrPort]bool{}
	for _, s := range servers {
		if !named[s.API] {
			named[s.API] = true
			out = append(out, s)
		}
	}
	return out
}

// OwnAnswersError is returned when no keys were got, though one who answered may be of the node's
// own cluster.
type OwnAnswersError struct{ Err error }

func (e *OwnAnswersError) Error() string { return e.Err.Error() }
func (e *OwnAnswersError) Unwrap() error { return e.Err }

// heardKeys is what the servers that were asked have said so far.
type heardKeys struct {
	wanted        uint64 // generation
	successor     *keysAnswer
	stray, barred error
	own           bool // one who answered may be of the node's own cluster
	failed        error
}

// add takes an answer, and tells whether it is the one that is wanted.
func (h *heardKeys) add(a keysAnswer) bool {
	var refused *join.RefusedError
	switch {
	case a.err == nil && a.keys.Successor != nil:
		if h.successor == nil || a.place < h.successor.place {
			h.successor = &a
		}
	case a.err == nil && a.keys.Generation >= h.wanted:
		return true
	case a.err == nil:
		h.own, h.failed = true, fmt.Errorf("%s has gossip keys of generation %d, %d is wanted", a.name, a.keys.Generation, h.wanted)
	case errors.As(a.err, &refused) && refused.Status == http.StatusForbidden:
		h.barred = a.err
	case errors.As(a.err, &refused) && refused.Status == http.StatusConflict:
		h.stray = a.err // others may be of this node's own cluster
	case refused != nil:
		h.own, h.failed = true, a.err
	case !h.own:
		h.failed = a.err
	}
	return false
}

// verdict is what follows when none of the answers was the one.
func (h *heardKeys) verdict() (join.GossipKeys, error) {
	switch {
	case h.barred != nil:
		return join.GossipKeys{}, &OwnAnswersError{fmt.Errorf("%w: %w", keyring.ErrBarred, h.barred)}
	case h.own:
		return join.GossipKeys{}, &OwnAnswersError{h.failed}
	case h.successor != nil:
		return h.successor.keys, nil
	case h.stray != nil:
		return join.GossipKeys{}, fmt.Errorf("%w: %w", keyring.ErrBarred, h.stray)
	}
	return join.GossipKeys{}, h.failed
}

// AskKeys is how a node of the cluster asks one server.
func AskKeys(ca join.Verifier, own *tls.Certificate, cluster string) func(context.Context, join.Server) (join.GossipKeys, error) {
	return func(ctx context.Context, server join.Server) (join.GossipKeys, error) {
		return fetchKeysFrom(ctx, server, ca, own, cluster)
	}
}

func fetchKeysFrom(ctx context.Context, server join.Server, ca join.Verifier, own *tls.Certificate, cluster string) (join.GossipKeys, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := join.NewClient(server.API.String(), ca, own, time.Now)
	if err != nil {
		return join.GossipKeys{}, err
	}
	defer client.Close()
	return client.GossipKeys(ctx, cluster)
}
