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
	// askNext is the time without an answer after which the next server is asked as well. Dead
	// machines answer nothing, and most recorded servers may be dead.
	askNext = 250 * time.Millisecond
)

// keysAnswer is a server's answer or error.
type keysAnswer struct {
	place int // of the server in the list of asked ones
	name  string
	keys  join.GossipKeys
	err   error
}

// FetchKeys asks the servers, each address once, for gossip keys of at least the generation. An
// answer of the node's own cluster counts first, in any order of servers and answers. The
// successor's answer is returned only if no answering server can be of the own cluster. A server of
// a healthy cluster may have been recovered by mistake.
func FetchKeys(
	ctx context.Context, servers []join.Server, generation uint64,
	ask func(context.Context, join.Server) (join.GossipKeys, error),
) (join.GossipKeys, error) {
	servers = distinct(servers)
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // later answers are not needed
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

// OwnAnswersError is returned if no keys were received although a server of the node's own cluster
// may have answered.
type OwnAnswersError struct{ Err error }

func (e *OwnAnswersError) Error() string { return e.Err.Error() }
func (e *OwnAnswersError) Unwrap() error { return e.Err }

// heardKeys holds the answers so far.
type heardKeys struct {
	wanted        uint64 // generation
	successor     *keysAnswer
	stray, barred error
	own           bool // an answering server may be of the node's own cluster
	failed        error
}

// add stores an answer, and reports whether it is sufficient.
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
		h.own, h.failed = true,
			fmt.Errorf("%s has gossip keys of generation %d, %d is wanted", a.name, a.keys.Generation, h.wanted)
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

// verdict is the result if no answer was sufficient.
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
func AskKeys(
	ca join.Verifier, own *tls.Certificate, cluster string,
) func(context.Context, join.Server) (join.GossipKeys, error) {
	return func(ctx context.Context, server join.Server) (join.GossipKeys, error) {
		return fetchKeysFrom(ctx, server, ca, own, cluster)
	}
}

func fetchKeysFrom(
	ctx context.Context, server join.Server, ca join.Verifier, own *tls.Certificate, cluster string,
) (join.GossipKeys, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := join.NewClient(server.API.String(), ca, own, time.Now)
	if err != nil {
		return join.GossipKeys{}, err
	}
	defer client.Close()
	return client.GossipKeys(ctx, cluster)
}
