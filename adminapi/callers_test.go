package adminapi

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// trip is a transport of tests.
type trip func(r *http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestTheAdministratorsCertificateIsForEarlierVersions: a server shows it to servers only that
// refuse the one of servers, while a server of an earlier version lives.
func TestTheAdministratorsCertificateIsForEarlierVersions(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		status  int
		err     error
		earlier bool
		admin   int
		want    string
	}{
		"this version":        {http.StatusOK, nil, true, 0, "as server"},
		"an earlier one":      {http.StatusForbidden, nil, true, 1, "as admin"},
		"after the last one":  {http.StatusForbidden, nil, false, 0, "as server"},
		"not there":           {0, gone, true, 0, ""},
		"not reachable":       {http.StatusServiceUnavailable, nil, true, 0, "as server"},
		"no such path":        {http.StatusNotFound, nil, true, 0, "as server"},
		"not known to it":     {http.StatusUnauthorized, nil, true, 0, "as server"},
		"an error, unsure":    {http.StatusGatewayTimeout, nil, true, 0, "as server"},
		"all of this version": {http.StatusOK, nil, false, 0, "as server"},
	} {
		asked, log := 0, new(strings.Builder)
		answer := func(status int, text string) *http.Response {
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text))}
		}
		calls := callers{
			trip(func(*http.Request) (*http.Response, error) {
				if c.err != nil {
					return nil, c.err
				}
				return answer(c.status, "as server"), nil
			}),
			trip(func(r *http.Request) (*http.Response, error) {
				asked++
				if r.Method != http.MethodPost || r.URL.String() != "https://s2/barque/v1/certificates?of=s2" {
					t.Errorf("%s: %s %s", name, r.Method, r.URL)
				}
				return answer(http.StatusOK, "as admin"), nil
			}),
			func() bool { return c.earlier },
			slog.New(slog.NewTextHandler(log, nil)),
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"https://s2/barque/v1/certificates?of=s2", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Transport: calls}).Do(request)
		if asked != c.admin || !errors.Is(err, c.err) {
			t.Errorf("%s: the administrator's certificate was shown %d times, %v", name, asked, err)
		}
		if told := strings.Count(log.String(), "at=s2 method=POST path=/barque/v1/certificates"); told != c.admin {
			t.Errorf("%s: it is logged %d times: %s", name, told, log)
		}
		if err != nil {
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(text) != c.want {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

// TestEarlier: servers of earlier versions count that live; agents and former servers do not.
func TestEarlier(t *testing.T) {
	member := func(role string, state gossip.State, form int) gossip.Member {
		return gossip.Member{Role: role, State: state, Facts: gossip.Facts{CAs: form}}
	}
	ours := member(pki.RoleServer, gossip.Alive, pki.BundleForm)
	for what, c := range map[string]struct {
		other gossip.Member
		want  bool
	}{
		"another of this version":  {ours, false},
		"one of an earlier":        {member(pki.RoleServer, gossip.Alive, 0), true},
		"one of the version after": {member(pki.RoleServer, gossip.Alive, pki.ExternalForm), true},
		"of a later version":       {member(pki.RoleServer, gossip.Alive, pki.BundleForm+1), false},
		"an earlier one that died": {member(pki.RoleServer, gossip.Dead, 0), false},
		"an earlier one that left": {member(pki.RoleServer, gossip.Left, 0), false},
		"an agent":                 {member(pki.RoleAgent, gossip.Alive, 0), false},
	} {
		if got := earlier([]gossip.Member{ours, c.other}); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
	if earlier(nil) {
		t.Error("without members")
	}
}
