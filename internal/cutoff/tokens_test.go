package cutoff

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokensEnd: watches end within a minute of their token. Each token is judged once for all of
// its watches, short requests are not judged, and a look that hangs holds up no later one.
func TestTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the pod is gone")
		judged, isGone, hangs := map[string]int{}, false, false
		var mu sync.Mutex
		q := OfTokens(func(ctx context.Context, token string) error {
			mu.Lock()
			judged[token]++
			hang, over := hangs && token == "slow", isGone && token == "bad"
			mu.Unlock()
			if hang {
				<-ctx.Done()
			}
			if over {
				return gone
			}
			return nil
		}, func(r *http.Request) bool { return r.URL.Path == "/watch" })
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { q.RunTokens(ctx) })
		ended := map[string][]error{}
		open := func(token, path string) {
			handler := WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ProvenByToken(r.Context(), token)
				q.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					mu.Lock()
					defer mu.Unlock()
					ended[token+path] = append(ended[token+path], context.Cause(r.Context()))
				})).ServeHTTP(w, r)
			}))
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
			r.TLS = &tls.ConnectionState{}
			running.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
		}
		for _, token := range []string{"bad", "bad", "good", "slow"} {
			open(token, "/watch")
		}
		open("bad", "/list")
		time.Sleep(lookAgain + time.Second)
		synctest.Wait()
		mu.Lock()
		if len(ended) > 0 || judged["bad"] != 1 || judged["good"] != 1 {
			t.Errorf("after a minute %v have ended, and %v were judged", ended, judged)
		}
		hangs = true
		mu.Unlock()
		time.Sleep(2*lookAgain + tokenPatience)
		synctest.Wait()
		mu.Lock()
		isGone = true
		if judged["good"] != 3 || judged["slow"] != 3 {
			t.Errorf("%v were judged in three minutes", judged)
		}
		mu.Unlock()
		time.Sleep(lookAgain)
		synctest.Wait()
		mu.Lock()
		if len(ended) != 1 || len(ended["bad/watch"]) != 2 || !errors.Is(ended["bad/watch"][0], gone) {
			t.Errorf("%v have ended", ended)
		}
		mu.Unlock()
		stop()
		running.Wait()
	})
}
