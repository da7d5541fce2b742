package adminapi

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// trip is a transport of tests.
type trip func(r *http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestTheAdministratorsCertificateIsForEarlierVersions: a server shows it to servers only that
// refuse the one of servers.
func TestTheAdministratorsCertificateIsForEarlierVersions(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		status int
		err    error
		admin  int
		want   string
	}{
		"this version":     {http.StatusOK, nil, 0, "as server"},
		"an earlier one":   {http.StatusForbidden, nil, 1, "as admin"},
		"not there":        {0, gone, 0, ""},
		"not reachable":    {http.StatusServiceUnavailable, nil, 0, "as server"},
		"no such path":     {http.StatusNotFound, nil, 0, "as server"},
		"not known to it":  {http.StatusUnauthorized, nil, 0, "as server"},
		"an error, unsure": {http.StatusGatewayTimeout, nil, 0, "as server"},
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
			slog.New(slog.NewTextHandler(log, nil)),
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://s2/barque/v1/certificates?of=s2", nil)
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
