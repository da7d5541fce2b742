package abac

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const head = `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":`

func TestAuthorize(t *testing.T) {
	a, err := New([]byte("# who may do what\n" +
		head + `{"user":"ann","namespace":"*","resource":"*","apiGroup":"*"}}` + "\n\n" +
		head + `{"group":"readers","namespace":"shop","resource":"pods","readonly":true}}` + "\n" +
		head + `{"user":"bob","group":"readers","nonResourcePath":"/logs/*"}}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	on := func(verb, namespace, group, resource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Namespace: namespace, APIGroup: group, Resource: resource,
			ResourceRequest: true}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	for name, c := range map[string]struct {
		user   string
		groups []string
		what   authorizer.AttributesRecord
		want   authorizer.Decision
	}{
		"all of a user": {"ann", nil, on("delete", "shop", "apps", "deployments"),
			authorizer.DecisionAllow},
		"no paths with it": {"ann", nil, path("get", "/metrics"), authorizer.DecisionNoOpinion},
		"reading": {"cid", []string{"readers"}, on("list", "shop", "", "pods"),
			authorizer.DecisionAllow},
		"a subresource": {"cid", []string{"readers"},
			authorizer.AttributesRecord{Verb: "get", Namespace: "shop", Resource: "pods", Subresource: "log",
				ResourceRequest: true}, authorizer.DecisionAllow},
		"no writing": {"cid", []string{"readers"}, on("create", "shop", "", "pods"),
			authorizer.DecisionNoOpinion},
		"another namespace": {"cid", []string{"readers"}, on("list", "till", "", "pods"),
			authorizer.DecisionNoOpinion},
		"another API group": {"cid", []string{"readers"}, on("list", "shop", "metrics.k8s.io", "pods"),
			authorizer.DecisionNoOpinion},
		"the user without the group": {"bob", nil, path("get", "/logs/x"), authorizer.DecisionNoOpinion},
		"the user in the group":      {"bob", []string{"readers"}, path("get", "/logs/x"), authorizer.DecisionAllow},
		"another path":               {"bob", []string{"readers"}, path("get", "/log"), authorizer.DecisionNoOpinion},
		"a stranger":                 {"dan", nil, on("get", "shop", "", "pods"), authorizer.DecisionNoOpinion},
	} {
		t.Run(name, func(t *testing.T) {
			c.what.User = &user.DefaultInfo{Name: c.user, Groups: c.groups}
			if got, _, err := a.Authorize(t.Context(), c.what); got != c.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
	rules, paths, incomplete, err := a.RulesFor(t.Context(),
		&user.DefaultInfo{Name: "bob", Groups: []string{"readers"}}, "shop")
	if len(rules) != 1 || len(paths) != 1 || incomplete || err != nil {
		t.Errorf("the rules are %v, %v, %v, %v", rules, paths, incomplete, err)
	}
}

// TestParse: a line that is not understood whole makes the file void, with its number.
func TestParse(t *testing.T) {
	good := head + `{"user":"ann","namespace":"*"}}`
	for line, want := range map[string]string{
		"":               "no policy",
		`{"user":"ann"}`: "line 2",
		head + `{"user":"ann","resorce":"pods"}}`: "resorce",
		head + `{"resource":"pods"}}`:             "matches nobody",
		good + good:                               "one policy",
		strings.Replace(good, "v1beta1", "v1", 1): "want a Policy",
		"ann,*":                               "invalid character",
		strings.Repeat(" ", maxLine+1) + good: "a line of more than",
	} {
		if _, err := New([]byte("#\n" + line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", line, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + `{"user":"ann","namespace":"*","resource":"*","apiGroup":"*"}}`))
	f.Add([]byte(head + `{"group":"*","nonResourcePath":"/*","readonly":true}}` + "\n#\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := New(data)
		if err != nil {
			return
		}
		nobody := authorizer.AttributesRecord{Verb: "delete", Namespace: "n", Resource: "pods", ResourceRequest: true}
		if got, _, _ := a.Authorize(t.Context(), nobody); got != authorizer.DecisionNoOpinion {
			t.Errorf("a request without a user was permitted by %q", data)
		}
	})
}
