package audit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/rbac"
)

// TestDefaultPolicy: changes are recorded, and reads of Secrets; the cluster's routine is not, and
// no contents but those of a few kinds.
func TestDefaultPolicy(t *testing.T) {
	rules, err := readPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	of := policy.NewPolicyRuleEvaluator(rules)
	person := &user.DefaultInfo{Name: "ann"}
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	account := func(name string) *user.DefaultInfo {
		return &user.DefaultInfo{Name: "system:serviceaccount:kube-system:" + name,
			Groups: serviceaccount.MakeGroupNames("kube-system")}
	}
	manager, other := account("deployment-controller"), account("metrics-server")
	own := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	planner := &user.DefaultInfo{Name: "system:kube-scheduler"}
	resource := func(group, resource, subresource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{APIGroup: group, Resource: resource, Subresource: subresource,
			ResourceRequest: true, Namespace: "kube-system"}
	}
	path := func(path string) authorizer.AttributesRecord { return authorizer.AttributesRecord{Path: path} }
	const none, metadata, request = auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequest
	for name, c := range map[string]struct {
		user  user.Info
		verbs string
		what  authorizer.AttributesRecord
		want  auditinternal.Level
	}{
		"writes of a person": {person, "create update patch delete deletecollection",
			resource("apps", "deployments", ""), metadata},
		"of a custom kind": {person, "create", resource("example.com", "widgets", ""), metadata},
		"of ConfigMaps in kube-system": {person, "create update patch", resource("", "configmaps", ""),
			metadata},
		"reads of a person":          {person, "get list watch", resource("", "configmaps", ""), none},
		"reads of Secrets":           {person, "get list watch", resource("", "secrets", ""), metadata},
		"reads of Secrets by a node": {node, "get watch", resource("", "secrets", ""), metadata},
		"writes of Secrets": {person, "create update patch delete", resource("", "secrets", ""),
			metadata},
		"tokens": {person, "create", resource("", "serviceaccounts", "token"), metadata},
		"reviews of tokens": {person, "create",
			resource("authentication.k8s.io", "tokenreviews", ""), metadata},
		"reviews of rights": {person, "create",
			resource("authorization.k8s.io", "subjectaccessreviews", ""), none},
		"exec, which is a get": {person, "get create", resource("", "pods", "exec"), metadata},
		"the proxies":          {person, "get create", resource("", "nodes", "proxy"), metadata},
		"logs":                 {person, "get", resource("", "pods", "log"), none},
		"rights": {person, "create update patch delete",
			resource("rbac.authorization.k8s.io", "clusterroles", ""), request},
		"webhooks": {person, "create",
			resource("admissionregistration.k8s.io", "validatingwebhookconfigurations", ""), request},
		"reads of rights": {person, "get list", resource("rbac.authorization.k8s.io", "roles", ""),
			none},
		"events":                           {person, "create patch", resource("", "events", ""), none},
		"events of the other group":        {node, "create patch", resource("events.k8s.io", "events", ""), none},
		"leases":                           {node, "update", resource("coordination.k8s.io", "leases", ""), none},
		"the status of a node":             {node, "patch update", resource("", "nodes", "status"), none},
		"the status of a node by a person": {person, "patch", resource("", "nodes", "status"), metadata},
		"labels of a node":                 {node, "patch", resource("", "nodes", ""), metadata},
		"the status of a pod":              {node, "patch", resource("", "pods", "status"), none},
		"a token for a pod":                {node, "create", resource("", "serviceaccounts", "token"), metadata},
		"status by the controllers": {manager, "update patch", resource("apps", "deployments", "status"),
			none},
		"endpoints": {manager, "create update patch",
			resource("discovery.k8s.io", "endpointslices", ""), none},
		"endpoints of a person": {person, "update", resource("discovery.k8s.io", "endpointslices", ""),
			metadata},
		"pods by the controllers":              {manager, "create delete", resource("", "pods", ""), metadata},
		"reads of Secrets by the controllers":  {manager, "get list watch", resource("", "secrets", ""), none},
		"writes of Secrets by the controllers": {manager, "update delete", resource("", "secrets", ""), metadata},
		"reads of Secrets by other accounts":   {other, "get list watch", resource("", "secrets", ""), metadata},
		"status by other accounts": {other, "update patch", resource("apps", "deployments", "status"),
			metadata},
		"reads of Secrets by the informers":    {own, "list watch", resource("", "secrets", ""), none},
		"bindings":                             {planner, "create", resource("", "pods", "binding"), none},
		"bindings by a person":                 {person, "create", resource("", "pods", "binding"), metadata},
		"preemption":                           {planner, "delete", resource("", "pods", ""), metadata},
		"operators' changes":                   {person, "post", path("/barque/v1/keys"), metadata},
		"a backup":                             {person, "post", path("/barque/v1/snapshot-save"), metadata},
		"reads of this log":                    {person, "get", path("/barque/v1/audit"), metadata},
		"the diagnosis":                        {person, "get", path("/barque/v1/diagnosis"), metadata},
		"the status":                           {person, "get", path("/barque/v1/status"), none},
		"health":                               {person, "get", path("/readyz"), none},
		"writes with credentials that are bad": {nil, "create", resource("", "pods", ""), metadata},
	} {
		for verb := range strings.FieldsSeq(c.verbs) {
			c.what.User, c.what.Verb = c.user, verb
			got := of.EvaluatePolicyRule(c.what)
			if got.Level != c.want {
				t.Errorf("%s: %s has level %s, want %s", name, verb, got.Level, c.want)
			}
			if got.Level != none && (len(got.OmitStages) != 1 || !got.OmitManagedFields) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// TestControlPlaneIsRoutine: the default policy knows each user of the control plane by its name. A
// group has more members than these.
func TestControlPlaneIsRoutine(t *testing.T) {
	rules, err := readPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	of := policy.NewPolicyRuleEvaluator(rules)
	for _, name := range append(rbac.ControlPlane(), user.APIServerUser) {
		read := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: "list", Resource: "secrets",
			ResourceRequest: true}
		if got := of.EvaluatePolicyRule(read).Level; got != auditinternal.LevelNone {
			t.Errorf("reads by %s have level %s; add it to policy.yaml", name, got)
		}
	}
	var named []string
	for _, r := range rules.Rules {
		named = append(named, r.Users...)
	}
	for _, name := range named {
		if name != user.APIServerUser && !slices.Contains(rbac.ControlPlane(), name) {
			t.Errorf("policy.yaml names %s, which is no user of the control plane", name)
		}
	}
}

// TestBadPolicy: the error names the file and the field.
func TestBadPolicy(t *testing.T) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"an unknown level": {head + "rules: [{level: Metadata}, {level: Metdata}]",
			[]string{"rules[1].level", `"Metdata"`}},
		"no level":           {head + "rules: [{users: [ann]}]", []string{"rules[0].level"}},
		"a misspelled field": {head + "rules: [{level: None, user: [ann]}]", []string{"rules[0].user"}},
		"an unknown stage":   {head + "omitStages: [Begin]\nrules: [{level: None}]", []string{"omitStages[0]"}},
		"no rules":           {head, []string{"rules"}},
		"another version": {"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]",
			[]string{"audit.k8s.io/v1beta1"}},
		"another kind": {"apiVersion: audit.k8s.io/v1\nkind: Event\n", []string{"Event"}},
		"nothing":      {"", []string{"kind"}},
		"no YAML":      {"{", []string{"yaml"}},
		"a path and resources": {head + "rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]",
			[]string{"rules[0].nonResourceURLs"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			o := NewOptions()
			o.PolicyFile = path
			err := o.Check()
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(c.want, path, "--audit-policy-file") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
		})
	}
	o := NewOptions()
	o.PolicyFile = filepath.Join(t.TempDir(), "none")
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), o.PolicyFile) {
		t.Errorf("a file that does not exist: %v", err)
	}
}
