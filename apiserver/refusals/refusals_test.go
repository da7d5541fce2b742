package refusals

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics/testutil"
)

// TestRefusalsOfTheControlPlane: each refusal of its users is counted, and logged once a minute.
// Others' are not.
func TestRefusalsOfTheControlPlane(t *testing.T) {
	var log strings.Builder
	now := time.Unix(0, 0)
	allows := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() == "get" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "no role", nil
	})
	a := New(allows, []string{"controller"}, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	ask := func(name, verb, resource, sub string) {
		t.Helper()
		of := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: verb, APIGroup: "apps", Resource: resource, Subresource: sub, ResourceRequest: true}
		want := authorizer.DecisionNoOpinion
		if verb == "get" {
			want = authorizer.DecisionAllow
		}
		if got, _, err := a.Authorize(t.Context(), of); got != want || err != nil {
			t.Errorf("%s %s: %v, %v", name, verb, got, err)
		}
	}
	lines := func(want int) {
		t.Helper()
		if got := strings.Count(log.String(), "level=WARN"); got != want {
			t.Errorf("%d lines, want %d:\n%s", got, want, log.String())
		}
	}
	ask("controller", "get", "deployments", "")
	ask("ann", "update", "deployments", "")
	ask("controller", "update", "deployments", "status")
	ask("controller", "update", "deployments", "status")
	ask("controller", "delete", "deployments", "")
	lines(2)
	now = now.Add(time.Minute)
	ask("controller", "update", "deployments", "status")
	lines(3)
	a.ConditionsAwareAuthorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "controller"}, Verb: "post", Path: "/barque/v1/keys"})
	lines(4)
	for labels, want := range map[[3]string]float64{
		{"controller", "update", "deployments/status.apps"}: 3,
		{"controller", "delete", "deployments.apps"}:        1,
		{"controller", "post", "/barque/v1/keys"}:           1,
		{"ann", "update", "deployments.apps"}:               0,
	} {
		if got, err := testutil.GetCounterMetricValue(Total.WithLabelValues(labels[:]...)); err != nil || got != want {
			t.Errorf("%v: counted %v (%v), want %v", labels, got, err, want)
		}
	}
}
