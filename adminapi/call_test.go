package adminapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A call without an answer may have taken effect, unless the server has refused it. node is the
// other server's answer.
type node struct {
	Node string `json:"node"`
}

func TestACallWhoseAnswerIsLostHasNoKnownOutcome(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "because", code) }
	}
	for what, c := range map[string]struct {
		does    http.HandlerFunc // nil: it is gone
		ok      bool
		unknown bool
	}{
		"it answers": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"node":"s2"}`)) }, true, false},
		"it says no":           {status(http.StatusServiceUnavailable), false, false},
		"it does not know":     {status(http.StatusGatewayTimeout), false, true},
		"it dies in the midst": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, true},
		"it dies while it answers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"node"`))
			panic(http.ErrAbortHandler)
		}, false, true},
		"it is gone": {nil, false, false},
	} {
		t.Run(what, func(t *testing.T) {
			s := httptest.NewTLSServer(c.does)
			defer s.Close()
			client := s.Client()
			if c.does == nil {
				s.Close()
			}
			var n node
			err := CallJSON(t.Context(), client, http.MethodPost, "s2", s.URL, &n)
			if (err == nil) != c.ok || c.ok && n.Node != "s2" || errors.Is(err, ErrOutcomeUnknown) != c.unknown {
				t.Errorf("%+v, %v", n, err)
			}
			if err := CallJSON(t.Context(), client, http.MethodGet, "s2", s.URL, new(node)); (err == nil) != c.ok ||
				errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("a question, which changes nothing: %v", err)
			}
		})
	}
	t.Run("it takes too long", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}))
		defer s.Close()
		if err := CallJSON(ctx, s.Client(), http.MethodPost, "s2", s.URL, nil); !errors.Is(err, ErrOutcomeUnknown) ||
			!errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
