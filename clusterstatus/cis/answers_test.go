package cis

import (
	"strings"
	"testing"
)

// TestEachServersAnswersCount: servers may have different flags, so a row about answers of the API
// fails if one server has a bad one, and is unknown if one was not asked.
func TestEachServersAnswersCount(t *testing.T) {
	ofAnswers := []string{"1.2.6", "1.2.7", "1.2.8", "5.1.2", "5.1.4", "5.2.1", "5.2.2", "5.2.3", "5.2.4", "5.2.5",
		"5.2.6", "5.2.7", "5.2.8", "5.2.9", "5.2.11", "5.2.12"}
	three := func() *Evidence {
		e := hardened()
		for _, name := range []string{"s2", "s3"} {
			s := hardened().Servers[0]
			s.Name = name
			e.Servers = append(e.Servers, s)
		}
		return e
	}
	for _, id := range ofAnswers {
		for at, name := range []string{"s1", "s2", "s3"} {
			e := three()
			if r := judged(e, id); r.Status != Pass {
				t.Errorf("%s: alike: %+v", id, r)
			}
			bad := hardened()
			faults[id](bad)
			e.Servers[at].Answers = bad.Servers[0].Answers
			if r := judged(e, id); r.Status != Fail || !strings.Contains(r.Reason, name+": ") {
				t.Errorf("%s: a fault of %s: %+v", id, name, r)
			}
			e = three()
			e.Servers[at].Answers, e.Servers[at].Unasked = nil, "no route"
			if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, name+": ") ||
				!strings.Contains(r.Reason, "no route") {
				t.Errorf("%s: %s was not asked: %+v", id, name, r)
			}
			e = three()
			e.Servers[at].Answers = &Answers{Problem: "429"}
			if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, "429") {
				t.Errorf("%s: %s has not answered: %+v", id, name, r)
			}
		}
	}
}

// TestFailedReviews: a refusal in spite of an error of an authorizer proves nothing.
func TestFailedReviews(t *testing.T) {
	for id, key := range map[string]string{"1.2.6": Stranger,
		"5.1.2": BroadGroups[1].Request("get secrets", "kube-system"),
		"5.1.4": BroadGroups[2].Request("create pods", "")} {
		e := hardened()
		may(key, Answer{Problem: "webhook: no route"})(e)
		if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, "no route") {
			t.Errorf("%s: %+v", id, r)
		}
	}
}

// TestNoNamespaceIsNoPolicy: pods that were tried nowhere were refused nowhere.
func TestNoNamespaceIsNoPolicy(t *testing.T) {
	e := hardened()
	e.Objects.Namespaces = nil
	if r := judged(e, "5.2.2"); r.Status != Unknown {
		t.Errorf("%+v", r)
	}
}
