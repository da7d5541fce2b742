package gatewayauth

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// none has no opinion.
type none struct{ authorizer.Authorizer }

func (none) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
}

func TestOnlyNamedSecrets(t *testing.T) {
	a := New(none{}, func(resource, namespace, name string) bool {
		return namespace == "a" && (resource == "secrets" && name == "cert" || resource == "configmaps" && name == "ca")
	})
	ask := func(change func(*authorizer.AttributesRecord)) authorizer.Decision {
		r := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: User}, Verb: "watch", Namespace: "a", Resource: "secrets", Name: "cert",
			APIVersion: "v1", ResourceRequest: true,
		}
		change(&r)
		decision, _, err := a.Authorize(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
	for _, verb := range []string{"get", "list", "watch"} {
		if ask(func(r *authorizer.AttributesRecord) { r.Verb = verb }) != authorizer.DecisionAllow {
			t.Errorf("%s of a named Secret is refused", verb)
		}
	}
	if ask(
		func(r *authorizer.AttributesRecord) { r.Resource, r.Name = "configmaps", "ca" }) != authorizer.DecisionAllow {
		t.Error("a ConfigMap that a policy names is refused")
	}
	for name, change := range map[string]func(*authorizer.AttributesRecord){
		"all Secrets of a namespace": func(r *authorizer.AttributesRecord) { r.Name = "" },
		"another Secret":             func(r *authorizer.AttributesRecord) { r.Name = "other" },
		"another namespace":          func(r *authorizer.AttributesRecord) { r.Namespace = "b" },
		"all namespaces":             func(r *authorizer.AttributesRecord) { r.Namespace = "" },
		"a write":                    func(r *authorizer.AttributesRecord) { r.Verb = "update" },
		"another user": func(
			r *authorizer.AttributesRecord,
		) {
			r.User = &user.DefaultInfo{Name: "system:node:n"}
		},
		"a ConfigMap of that name": func(r *authorizer.AttributesRecord) { r.Resource = "configmaps" },
		"another resource":         func(r *authorizer.AttributesRecord) { r.Resource = "pods" },
		"all ConfigMaps":           func(r *authorizer.AttributesRecord) { r.Resource, r.Name = "configmaps", "" },
		"the token of a Secret":    func(r *authorizer.AttributesRecord) { r.Subresource = "token" },
		"a resource of that name":  func(r *authorizer.AttributesRecord) { r.APIGroup = "example.com" },
		"a path":                   func(r *authorizer.AttributesRecord) { r.ResourceRequest = false },
	} {
		if ask(change) == authorizer.DecisionAllow {
			t.Errorf("%s is allowed", name)
		}
	}
	if New(none{}, nil).allows(
		authorizer.AttributesRecord{User: &user.DefaultInfo{Name: User}, Verb: "get", Namespace: "a",
			Resource: "secrets", Name: "cert", ResourceRequest: true}) {
		t.Error("allowed before anybody knows the listeners")
	}
}

// TestWatchesEndSoon: the gateway's watch of a Secret ends, though it asks for an hour; others go
// on.
func TestWatchesEndSoon(t *testing.T) {
	for name, c := range map[string]struct {
		user, verb, resource string
		ends                 bool
	}{
		"a Secret":     {User, "watch", "secrets", true},
		"a ConfigMap":  {User, "watch", "configmaps", true},
		"Ingresses":    {User, "watch", "ingresses", false},
		"another user": {"ann", "watch", "secrets", false},
		"a list":       {User, "list", "secrets", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				var ended error
				handler := Bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					select {
					case <-r.Context().Done():
						ended = r.Context().Err()
					case <-release:
					}
				}))
				ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: c.user})
				ctx = request.WithRequestInfo(ctx,
					&request.RequestInfo{IsResourceRequest: true, Verb: c.verb, Resource: c.resource})
				var running sync.WaitGroup
				running.Go(func() {
					handler.ServeHTTP(httptest.NewRecorder(),
						httptest.NewRequestWithContext(ctx, http.MethodGet, "/?timeoutSeconds=3600", nil))
				})
				time.Sleep(10 * time.Minute)
				close(release)
				running.Wait()
				if (ended != nil) != c.ends {
					t.Errorf("after ten minutes: %v", ended)
				}
			})
		})
	}
}
