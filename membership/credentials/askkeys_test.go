package credentials

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
)

// Keys of the agent's own cluster win over a successor, in every order; and a successor is not
// followed while one who answers may be of the own cluster.
func TestOwnClusterIsAskedBeforeAnHeir(t *testing.T) {
	type answer struct {
		keys join.GossipKeys
		err  error
	}
	answers := map[string]answer{
		"own":       {join.GossipKeys{Generation: 5}, nil},
		"behind":    {join.GossipKeys{Generation: 4}, nil},
		"successor": {join.GossipKeys{Generation: 9, Successor: &join.Cluster{ID: "successor"}}, nil},
		"third":     {join.GossipKeys{}, &join.RefusedError{Status: http.StatusConflict}},
		"barred":    {join.GossipKeys{}, &join.RefusedError{Status: http.StatusForbidden}},
		"starts":    {join.GossipKeys{}, &join.RefusedError{Status: http.StatusServiceUnavailable}},
		"away":      {join.GossipKeys{}, errors.New("no route to host")},
	}
	for _, c := range []struct {
		servers []string
		want    string // keys of "own", "successor", "barred", or "" for another error
	}{
		{[]string{"own", "successor"}, "own"},
		{[]string{"away", "successor", "third", "own"}, "own"},
		{[]string{"barred", "own"}, "own"},
		{[]string{"away", "successor", "away"}, "successor"},
		{[]string{"successor", "third"}, "successor"},
		{[]string{"successor", "behind"}, ""},
		{[]string{"successor", "starts", "away"}, ""},
		{[]string{"successor", "barred"}, "barred"},
		{[]string{"third", "away"}, "barred"},
		{[]string{"away"}, ""},
	} {
		for range c.servers { // each begins once, both ways around
			c.servers = append(c.servers[1:], c.servers[0])
			for _, order := range [][]string{c.servers, backwards(c.servers)} {
				var servers []join.Server
				for i, name := range order {
					servers = append(servers,
						join.Server{Name: name,
							API: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 6443)})
				}
				keys, err := FetchKeys(t.Context(), servers, 5,
					func(_ context.Context, s join.Server) (join.GossipKeys, error) {
						return answers[s.Name].keys, answers[s.Name].err
					})
				got := ""
				switch {
				case errors.Is(err, keyring.ErrBarred):
					got = "barred"
				case err == nil && keys.Successor != nil:
					got = "successor"
				case err == nil:
					got = "own"
				}
				if got != c.want {
					t.Errorf("%v: %q, want %q (%v)", order, got, c.want, err)
				}
			}
		}
	}
}

func backwards(names []string) []string {
	out := slices.Clone(names)
	slices.Reverse(out)
	return out
}

// Of servers that are gone most swallow what they are sent, and a node may know each by several of
// its addresses, and from several places. It still hears at once who answers, and soon that nobody
// else does.
func TestServersThatSwallowAreNotWaitedForOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers []join.Server
		for i := range 14 {
			servers = append(servers,
				join.Server{Name: fmt.Sprint("s", i),
					API: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 7)}), 6443)})
		}
		answers := byte(6)
		answer := join.GossipKeys{Successor: &join.Cluster{ID: "successor"}}
		var mu sync.Mutex
		asked := map[netip.AddrPort]int{}
		ask := func(ctx context.Context, s join.Server) (join.GossipKeys, error) {
			mu.Lock()
			asked[s.API]++
			mu.Unlock()
			if s.API.Addr().As4()[3] == answers {
				return answer, nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(fetchTimeout):
			}
			return join.GossipKeys{}, context.DeadlineExceeded
		}
		began := time.Now()
		keys, err := FetchKeys(t.Context(), servers, 5, ask)
		if took := time.Since(began); err != nil || keys.Successor == nil || took > fetchTimeout+7*askNext {
			t.Errorf("after %s: %+v, %v", took, keys, err)
		}
		for at, n := range asked {
			if n != 1 {
				t.Errorf("%s is asked %d times", at, n)
			}
		}
		began, answer = time.Now(), join.GossipKeys{Generation: 5}
		keys, err = FetchKeys(t.Context(), servers, 5, ask)
		if took := time.Since(began); err != nil || keys.Generation != 5 || took > 7*askNext {
			t.Errorf("after %s: %+v, %v", took, keys, err)
		}
		clear(asked)
		answers = 0
		if keys, err = FetchKeys(t.Context(), servers, 5, ask); err != nil || len(asked) != 1 {
			t.Errorf("the first one has the keys, and %d are asked: %+v, %v", len(asked), keys, err)
		}
	})
}
