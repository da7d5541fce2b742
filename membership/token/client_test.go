package token

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// TestDeletionAtAServer: the errors of a missing token and of a server without tokens differ, and a
// server's words reach the caller, with its status.
func TestDeletionAtAServer(t *testing.T) {
	for what, c := range map[string]struct {
		status  int
		body    string
		unknown bool
		says    string
	}{
		"one that was":              {200, `{"was":true}`, false, ""},
		"none":                      {404, `{"was":false}`, true, "zzzzzz"},
		"none, at an earlier one":   {200, `{"was":false}`, true, "zzzzzz"},
		"a server without tokens":   {404, "404 page not found", false, "earlier version"},
		"the same, as a Status":     {404, `{"kind":"Status","code":404}`, false, "earlier version"},
		"a store that is closed":    {503, "the store is closed", false, "delete the join token: the store is closed"},
		"an answer that was lost":   {504, "the leader has gone", false, "the leader has gone"},
		"an administrator's no one": {403, "this is for members of system:masters", false, "system:masters"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if w.Header().Set("Content-Type", "text/plain"); strings.HasPrefix(c.body, "{") {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(c.status)
			if _, err := w.Write([]byte(c.body)); err != nil {
				t.Error(err)
			}
		}))
		client, err := rest.UnversionedRESTClientFor(
			&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{GroupVersion: &schema.GroupVersion{},
				NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()}})
		if err != nil {
			t.Fatal(err)
		}
		err = Delete(t.Context(), client, "zzzzzz")
		if (err == nil) != (c.says == "") || errors.Is(err, ErrUnknown) != c.unknown ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		var status apierrors.APIStatus
		if c.status >= 403 && !c.unknown && (!errors.As(err, &status) || int(status.Status().Code) != c.status) {
			t.Errorf("%s: %v has no status", what, err)
		}
		server.Close()
	}
}
