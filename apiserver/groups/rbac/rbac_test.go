package rbac

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const meta = "metadata: {name: 'system:a', namespace: default, resourceVersion: '1'}\n"

func TestValidateRole(t *testing.T) {
	for name, c := range map[string]struct {
		role string
		want []string
	}{
		"good": {`rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]`, nil},
		"nothing": {`rules: [{}]`,
			[]string{grouptest.Missing + "rules[0].verbs", grouptest.Missing + "rules[0].apiGroups",
				grouptest.Missing + "rules[0].resources"}},
		"urls": {`rules: [{verbs: [get], nonResourceURLs: [/healthz]}]`,
			[]string{grouptest.Invalid + "rules[0].nonResourceURLs"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := grouptest.Parse[rbacv1.Role](t, meta+c.role)
			grouptest.WantErrors(t, roles().(*resource.Kind[rbacv1.Role]).Validate(context.Background(), r, nil),
				c.want...)
		})
	}
	grouptest.WantErrors(t, roles().(*resource.Kind[rbacv1.Role]).Validate(context.Background(),
		grouptest.Parse[rbacv1.Role](t, `metadata: {name: a/b, namespace: default}`), nil),
		grouptest.Invalid+"metadata.name")
}

func TestValidateClusterRole(t *testing.T) {
	for name, c := range map[string]struct {
		role string
		want []string
	}{
		"urls": {`rules: [{verbs: [get], nonResourceURLs: [/healthz]}]`, nil},
		"both": {`rules: [{verbs: [get], nonResourceURLs: [/healthz], apiGroups: [""], resources: [pods]}]`,
			[]string{grouptest.Invalid + "rules[0].nonResourceURLs"}},
		"aggregates": {`aggregationRule: {clusterRoleSelectors: [{matchLabels: {a: b}}]}`, nil},
		"of nothing": {`aggregationRule: {}`, []string{grouptest.Missing + "aggregationRule.clusterRoleSelectors"}},
		"wrong selector": {`aggregationRule: {clusterRoleSelectors: [{matchLabels: {"a b": c}}]}`,
			[]string{grouptest.Invalid + "aggregationRule.clusterRoleSelectors[0].matchLabels",
				grouptest.Invalid + "aggregationRule.clusterRoleSelectors[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := grouptest.Parse[rbacv1.ClusterRole](t, "metadata: {name: 'system:a'}\n"+c.role)
			grouptest.WantErrors(t, validateClusterRole(context.Background(), r, nil), c.want...)
		})
	}
}

func TestBinding(t *testing.T) {
	kind := roleBindings().(*resource.Kind[rbacv1.RoleBinding])
	b := grouptest.Parse[rbacv1.RoleBinding](t,
		meta+
			"roleRef: {kind: Role, name: r}\nsubjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s, namespace: ns}]")
	kind.Default(b)
	want := grouptest.Parse[rbacv1.RoleBinding](t,
		meta+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\nsubjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: u}, {kind: ServiceAccount, name: s, namespace: ns}]")
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	grouptest.WantErrors(t, kind.Validate(context.Background(), b, nil))
	grouptest.WantRow(t, kind, b, "system:a", "Role/r", "<unknown>", "u", "", "ns/s")

	changed := b.DeepCopy()
	changed.RoleRef.Name = "other"
	grouptest.WantErrors(t, kind.Validate(context.Background(), changed, b), grouptest.Invalid+"roleRef")

	bad := grouptest.Parse[rbacv1.RoleBinding](t, meta+`
roleRef: {apiGroup: x, kind: Rule}
subjects: [{kind: ServiceAccount, name: A, apiGroup: x}, {kind: Group, apiGroup: x}, {kind: Ghost, name: g}]
`)
	kind.Default(bad)
	grouptest.WantErrors(t, kind.Validate(context.Background(), bad, nil),
		grouptest.Unknown+"roleRef.apiGroup", grouptest.Unknown+"roleRef.kind", grouptest.Missing+"roleRef.name",
		grouptest.Invalid+"subjects[0].name", grouptest.Unknown+"subjects[0].apiGroup",
		grouptest.Missing+"subjects[1].name", grouptest.Unknown+"subjects[1].apiGroup",
		grouptest.Unknown+"subjects[2].kind")

	cluster := clusterRoleBindings().(*resource.Kind[rbacv1.ClusterRoleBinding])
	crb := grouptest.Parse[rbacv1.ClusterRoleBinding](t,
		"metadata: {name: a}\nroleRef: {kind: Role, name: r}\nsubjects: [{kind: ServiceAccount, name: s}]")
	cluster.Default(crb)
	grouptest.WantErrors(t, cluster.Validate(context.Background(), crb, nil), grouptest.Unknown+"roleRef.kind",
		grouptest.Missing+"subjects[0].namespace")
}

func TestRoleRow(t *testing.T) {
	r := grouptest.Parse[rbacv1.Role](t, meta)
	r.CreationTimestamp = grouptest.Ago(5 * time.Second)
	grouptest.WantRow(t, roles(), r, "system:a", "2030-01-02T03:04:00Z")
}
