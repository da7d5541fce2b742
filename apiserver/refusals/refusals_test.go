package refusals

import (
	"context"
	"fmt"
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
	allows := authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetVerb() == "get" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no role", nil
		})
	a := New(allows, []string{"controller"}, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	ask := func(name, verb, resource, sub string) {
		t.Helper()
		of := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: verb, APIGroup: "apps",
			Resource: resource, Subresource: sub, ResourceRequest: true}
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
	a.ConditionsAwareAuthorize(t.Context(),
		authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "controller"}, Verb: "post", Path: "/barque/v1/keys"})
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

// never is an authorizer that allows nothing.
func never(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "no role", nil
}

// TestBound: with any requests of a user, the memory and the counters for it stay small. Log lines
// stay few.
func TestBound(t *testing.T) {
	var log strings.Builder
	now := time.Unix(0, 0)
	a := New(authorizer.AuthorizerFunc(never), []string{"flood", "calm"}, slog.New(slog.NewTextHandler(&log, nil)),
		func() time.Time { return now })
	ask := func(name, verb, resource, path string) {
		_, _, _ = a.Authorize(t.Context(),
			authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: verb, Resource: resource, Path: path,
				ResourceRequest: path == ""})
	}
	const asked = 10 * most
	for i := range asked {
		ask("flood", "get", fmt.Sprintf("r%d", i), "")
		ask("flood", fmt.Sprintf("v%d", i), "pods", "")
		ask("flood", "get", "", fmt.Sprintf("/p%d", i))
	}
	ask("calm", "get", "pods", "")
	if got := len(a.logged); got > most+2 {
		t.Errorf("%d rights are remembered, want %d at most", got, most+2)
	}
	if got := strings.Count(log.String(), "level=WARN"); got > most+2 {
		t.Errorf("%d lines, want %d at most", got, most+2)
	}
	var sum float64
	for lacks := range a.logged {
		got, err := testutil.GetCounterMetricValue(Total.WithLabelValues(lacks.user, lacks.verb, lacks.resource))
		if err != nil {
			t.Fatal(err)
		}
		sum += got
	}
	if want := float64(3*asked + 1); sum != want {
		t.Errorf("%v refusals are counted, want %v", sum, want)
	}
	if got, err := testutil.GetCounterMetricValue(Total.WithLabelValues("calm", "get", "pods")); err != nil ||
		got != 1 {
		t.Errorf("those of another user: %v, %v", got, err)
	}
	lines := strings.Count(log.String(), "level=WARN")
	now = now.Add(again)
	ask("flood", "get", "yet another", "")
	if got := strings.Count(log.String(), "level=WARN"); got != lines+1 {
		t.Errorf("%d lines a minute later, want %d", got, lines+1)
	}
}

// TestNotCounted: a token's user is not a part of this process, and a question is no refusal while
// another one follows.
func TestNotCounted(t *testing.T) {
	a := New(authorizer.AuthorizerFunc(never), []string{"shared"}, slog.New(slog.DiscardHandler), time.Now)
	counted := func() float64 {
		got, err := testutil.GetCounterMetricValue(Total.WithLabelValues("shared", "sign", "signers"))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	of := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "shared", UID: "of its account"}, Verb: "sign",
		Resource: "signers", ResourceRequest: true}
	_, _, _ = a.Authorize(t.Context(), of)
	if got := counted(); got != 0 {
		t.Errorf("by a token: %v", got)
	}
	of.User = &user.DefaultInfo{Name: "shared"}
	var asked []string
	for ctx, name := range Questions(t.Context(), "one", "two", "three") {
		asked = append(asked, name)
		_, _, _ = a.Authorize(ctx, of)
	}
	if got := counted(); got != 1 || len(asked) != 3 {
		t.Errorf("three questions %q of which one is enough: counted %v", asked, got)
	}
	for ctx := range Questions(t.Context(), "one", "two") {
		_, _, _ = a.Authorize(ctx, of)
		break // it was allowed
	}
	if got := counted(); got != 1 {
		t.Errorf("counted %v after an answer that was enough", got)
	}
}
