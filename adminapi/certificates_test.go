package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

// exchanges counts the changes of the CA.
type exchanges struct {
	made  []exchange.Change
	seen  uint64 // of the last one
	moved uint64 // a change of this generation is refused
}

func (e *exchanges) Status() exchange.Status { return exchange.Status{} }

func (e *exchanges) Apply(_ context.Context, r exchange.Request) (exchange.Status, error) {
	e.made, e.seen = append(e.made, r.Change), r.Seen
	if r.Seen != 0 && r.Seen == e.moved {
		return exchange.Status{}, exchange.ErrMoved
	}
	if r.Change.BringsCA() && (string(r.Given.Chain) != "chain" || string(r.Given.Key) != "key") {
		return exchange.Status{}, pki.ErrUnfit
	}
	return exchange.Status{}, nil
}

// TestAnExchangeLocksNobodyOut: a caller's own certificate would end with the start of the
// exchange. The request is refused, with the remedy, unless the caller insists.
func TestAnExchangeLocksNobodyOut(t *testing.T) {
	personal, recorded := &x509.Certificate{Subject: pkix.Name{CommonName: "ann"}},
		&x509.Certificate{Subject: pkix.Name{CommonName: "barque:admin"}}
	for what, c := range map[string]struct {
		user, query string
		cert        *x509.Certificate
		status      int
	}{
		"a certificate of a user":       {"ann", "change=begin", personal, http.StatusConflict},
		"wanted":                        {"ann", "change=begin&loseAccess=true", personal, http.StatusOK},
		"the kubeconfig of a server":    {"barque:admin", "change=begin", recorded, http.StatusOK},
		"a token":                       {"ann", "change=begin", nil, http.StatusOK},
		"a token beside a certificate":  {"bob", "change=begin", personal, http.StatusOK},
		"an exchange that is under way": {"ann", "change=undo", personal, http.StatusOK},
		"to a built-in CA":              {"ann", "change=begin-built-in", personal, http.StatusConflict},
		"to an operator's CA":           {"ann", "change=begin-external", personal, http.StatusConflict},
	} {
		made := &exchanges{}
		handlers := map[string]http.Handler{}
		(&Certificates{Exchange: made, Ends: func(cert *x509.Certificate) bool { return cert == personal },
			Logger: slog.New(slog.DiscardHandler)}).AddHandlers(handlers)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, CAPath+"?"+c.query, nil)
		r.TLS = &tls.ConnectionState{}
		if c.cert != nil {
			r.TLS.PeerCertificates = []*x509.Certificate{c.cert}
		}
		w := httptest.NewRecorder()
		handlers[CAPath].ServeHTTP(w,
			r.WithContext(
				request.WithUser(r.Context(),
					&user.DefaultInfo{Name: c.user, Groups: []string{clusterusers.AdminGroup}})))
		if w.Code != c.status || len(made.made) == 0 != (c.status == http.StatusConflict) {
			t.Errorf("%s: %d %s; changes: %v", what, w.Code, w.Body, made.made)
		}
		if w.Code == http.StatusConflict &&
			(!strings.Contains(w.Body.String(), "admin.kubeconfig") ||
				!strings.Contains(w.Body.String(), "--lose-access")) {
			t.Errorf("%s: %s", what, w.Body)
		}
	}
}

// TestAnOrderNamesItsExchange: the generation that a caller has seen goes along, and an exchange
// that has moved on since is a conflict.
func TestAnOrderNamesItsExchange(t *testing.T) {
	for query, c := range map[string]struct {
		status int
		seen   uint64
	}{
		"change=undo&generation=7":    {http.StatusOK, 7},
		"change=undo":                 {http.StatusOK, 0},
		"change=undo&generation=8":    {http.StatusConflict, 8},
		"change=undo&generation=last": {http.StatusBadRequest, 0},
		"change=undo&generation=0":    {http.StatusBadRequest, 0},
	} {
		made, handlers := &exchanges{moved: 8}, map[string]http.Handler{}
		(&Certificates{Exchange: made, Logger: slog.New(slog.DiscardHandler)}).AddHandlers(handlers)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, CAPath+"?"+query, nil)
		w := httptest.NewRecorder()
		handlers[CAPath].ServeHTTP(w,
			r.WithContext(
				request.WithUser(r.Context(),
					&user.DefaultInfo{Name: "ann", Groups: []string{clusterusers.AdminGroup}})))
		if w.Code != c.status || (len(made.made) > 0) != (c.status != http.StatusBadRequest) || made.seen != c.seen {
			t.Errorf("%s: %d %s; changes: %v of generation %d", query, w.Code, w.Body, made.made, made.seen)
		}
	}
}

// TestWhoBringsACA: an operator with a CA has its key, and can issue itself certificates of
// system:masters for ever. So it is not allowed for barque:admins, whose rights end with a binding
// or a revocation.
func TestWhoBringsACA(t *testing.T) {
	const good = `{"chain":"Y2hhaW4=","key":"a2V5"}`
	for name, c := range map[string]struct {
		group, change, body string
		status              int
		made                bool
	}{
		"an administrator":       {"system:masters", "begin-external", good, http.StatusOK, true},
		"one of barque:admins":   {clusterusers.AdminGroup, "begin-external", good, http.StatusForbidden, false},
		"for all purposes":       {"system:masters", "begin-external-joint", good, http.StatusOK, true},
		"and barque:admins":      {clusterusers.AdminGroup, "begin-external-joint", good, http.StatusForbidden, false},
		"impersonating one":      {"system:masters", "begin-external", good, http.StatusForbidden, false},
		"a user":                 {"dev", "begin-external", good, http.StatusForbidden, false},
		"back, by barque:admins": {clusterusers.AdminGroup, "begin-built-in", "", http.StatusOK, true},
		"no JSON":                {"system:masters", "begin-external", "SECRET", http.StatusBadRequest, false},
		"a long text": {"system:masters", "begin-external",
			`{"chain":"` + strings.Repeat("A", longestGiven) + `"}`, http.StatusBadRequest, false},
		"a CA that does not fit": {"system:masters", "begin-external", `{}`, http.StatusUnprocessableEntity, true},
		"the key is no base64": {"system:masters", "begin-external", `{"key":"SECRET"}`, http.StatusBadRequest,
			false},
	} {
		made, handlers := &exchanges{}, map[string]http.Handler{}
		(&Certificates{Exchange: made, Ends: func(*x509.Certificate) bool { return false },
			Logger: slog.New(slog.DiscardHandler)}).AddHandlers(handlers)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, CAPath+"?change="+c.change,
			strings.NewReader(c.body))
		certified := c.group
		if name == "impersonating one" {
			certified = clusterusers.AdminGroup
		}
		r.TLS = &tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{
				{Subject: pkix.Name{CommonName: "ann", Organization: []string{certified}}}}}
		w := httptest.NewRecorder()
		handlers[CAPath].ServeHTTP(w,
			r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{c.group}})))
		if w.Code != c.status || len(made.made) > 0 != c.made || strings.Contains(w.Body.String(), "SECRET") {
			t.Errorf("%s: %d %s; changes: %v", name, w.Code, w.Body, made.made)
		}
	}
}

// TestWarningsOfTheCA: an operator's CA that is for all purposes has a warning, unless an exchange
// is about to end that.
func TestWarningsOfTheCA(t *testing.T) {
	for _, c := range []struct {
		is   exchange.Status
		told bool
	}{
		{exchange.Status{External: true}, true}, {exchange.Status{External: true, Separate: true}, false},
		{exchange.Status{}, false},
		{exchange.Status{External: true, Step: pki.Spreading}, false},
	} {
		said := (&ClusterCertificates{CA: c.is}).warnings()
		if told := slices.ContainsFunc(said,
			func(s string) bool { return strings.Contains(s, "is for all purposes") }); told != c.told {
			t.Errorf("%+v: %q", c.is, said)
		}
	}
}
