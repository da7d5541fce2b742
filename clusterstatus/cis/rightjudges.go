package cis

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/auth/rbac/validation"
)

const (
	mastersGroup = "system:masters"
	// adminRole is the role that gives everything, and the name of its default binding.
	adminRole   = "cluster-admin"
	clusterRole = "ClusterRole"
)

// BroadGroup is a group of all users of a kind, such as all service accounts.
type BroadGroup struct {
	Group string
	// User and Groups are a made-up member, for reviews.
	User   string
	Groups []string
}

// BroadGroups are these groups.
var BroadGroups = []BroadGroup{
	{Group: "system:authenticated", User: "barque:cis:authenticated", Groups: []string{"system:authenticated"}},
	{Group: "system:serviceaccounts", User: "system:serviceaccount:default:barque-cis",
		Groups: []string{"system:serviceaccounts", "system:authenticated"}},
	{Group: "system:unauthenticated", User: "system:anonymous", Groups: []string{"system:unauthenticated"}},
}

// isBroad reports whether a subject is a broad group, or all accounts of a namespace.
func isBroad(s rbacv1.Subject) bool {
	switch s.Kind {
	case rbacv1.GroupKind:
		return strings.HasPrefix(s.Name, "system:serviceaccounts:") ||
			slices.ContainsFunc(BroadGroups, func(c BroadGroup) bool { return c.Group == s.Name })
	case rbacv1.UserKind:
		return s.Name == "system:anonymous"
	}
	return false
}

// Reviews of broad groups: each request, a verb and a resource, in each namespace; "" is all of
// them.
var (
	ReadSecrets      = []string{"get secrets", "list secrets", "watch secrets"}
	CreatePods       = []string{"create pods"}
	ReviewNamespaces = []string{"", metav1.NamespaceSystem}
)

// Request is the key of the answer to a review in Answers.May.
func (c BroadGroup) Request(request, namespace string) string {
	if namespace == "" {
		return c.Group + ": " + request
	}
	return c.Group + ": " + request + " in " + namespace
}

// broadGroupsMay is about rights of broad groups: by reviews, and by bindings for the namespaces of
// users.
func broadGroupsMay(requests []string) func(*Evidence) Verdict {
	reviews := answers(func(a *Answers) Verdict {
		var may []string
		var doubt *Verdict
		for _, c := range BroadGroups {
			for _, request := range requests {
				for _, namespace := range ReviewNamespaces {
					v, key := a.review(c.Request(request, namespace))
					switch {
					case v == nil:
					case v.Status == Fail:
						may = append(may, key+": "+v.Reason)
					default:
						doubt = v
					}
				}
			}
		}
		switch {
		case may != nil:
			return fail("allowed are %s", some(may))
		case doubt != nil:
			return *doubt
		}
		return pass("accounts and strangers, as such, may not %s", requests[0])
	})
	var wanted []want
	for _, request := range requests {
		verb, resource, _ := strings.Cut(request, " ")
		wanted = append(wanted, want{verbs: []string{verb}, resource: resource})
	}
	return both(reviews, ofRoles(func(o *Objects, d *Defaults) Verdict {
		var found []string
		for _, b := range o.bindings() {
			for _, s := range b.beyond(d) {
				if isBroad(s) && anyIn(wanted, o.rules(b)) {
					found = append(found, fmt.Sprintf("%s: %s", b, subject(s)))
				}
			}
		}
		if found != nil {
			return person("%s", some(found))
		}
		return none("")
	}))
}

// review is nil for a refusal that is known, Fail for what is allowed, and else Unknown.
func (a *Answers) review(key string) (*Verdict, string) {
	answer, asked := a.May[key]
	var v Verdict
	switch {
	case !asked:
		v = a.missing(key)
	case answer.Allowed:
		v = fail("%s", answer.Reason)
	case answer.Problem != "":
		v = unknown("%s: %s", key, answer.Problem)
	default:
		return nil, key
	}
	return &v, key
}

// ofRoles judges roles and bindings, beside the default ones.
func ofRoles(judge func(*Objects, *Defaults) Verdict) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		switch {
		case e.Objects == nil:
			return unknown("the API was not asked")
		case e.Defaults == nil:
			return unknown("the default roles are not known")
		}
		return judge(e.Objects, e.Defaults)
	}
}

// bound is a binding of either kind.
type bound struct {
	namespace, name string // namespace is "" for a ClusterRoleBinding
	role            rbacv1.RoleRef
	subjects        []rbacv1.Subject
}

func (b bound) String() string {
	if b.namespace == "" {
		return "the binding " + b.name
	}
	return "the binding " + b.namespace + "/" + b.name
}

// subject names a subject.
func subject(s rbacv1.Subject) string {
	if s.Namespace != "" {
		return s.Kind + " " + s.Namespace + "/" + s.Name
	}
	return s.Kind + " " + s.Name
}

func boundBy(clusters []rbacv1.ClusterRoleBinding, locals []rbacv1.RoleBinding) []bound {
	var all []bound
	for i := range clusters {
		b := &clusters[i]
		all = append(all, bound{"", b.Name, b.RoleRef, b.Subjects})
	}
	for i := range locals {
		b := &locals[i]
		all = append(all, bound{b.Namespace, b.Name, b.RoleRef, b.Subjects})
	}
	return all
}

func (o *Objects) bindings() []bound { return boundBy(o.ClusterRoleBindings, o.RoleBindings) }

// beyond are the subjects besides those of the default binding of this name.
func (b bound) beyond(d *Defaults) []rbacv1.Subject {
	var own []rbacv1.Subject
	for _, other := range boundBy(d.ClusterRoleBindings, d.RoleBindings) {
		if other.namespace == b.namespace && other.name == b.name && other.role.Kind == b.role.Kind &&
			other.role.Name == b.role.Name {
			own = other.subjects
		}
	}
	var others []rbacv1.Subject
	for _, s := range b.subjects {
		if !slices.ContainsFunc(own,
			func(o rbacv1.Subject) bool { return o.Kind == s.Kind && o.Namespace == s.Namespace && o.Name == s.Name }) {
			others = append(others, s)
		}
	}
	return others
}

// rules are those of a binding's role; none if there is no such role.
func (o *Objects) rules(b bound) []rbacv1.PolicyRule {
	if b.role.Kind == clusterRole {
		for i := range o.ClusterRoles {
			if r := &o.ClusterRoles[i]; r.Name == b.role.Name {
				return r.Rules
			}
		}
		return nil
	}
	for i := range o.Roles {
		if r := &o.Roles[i]; r.Namespace == b.namespace && r.Name == b.role.Name {
			return r.Rules
		}
	}
	return nil
}

// excess are the rules of a role besides those of the default role of its name. A label proves
// nothing: whoever may write roles may set it.
func (d *Defaults) excess(namespace, name string, rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var own []rbacv1.PolicyRule
	if namespace == "" {
		own = d.clusterRules(name)
	}
	for i := range d.Roles {
		if r := &d.Roles[i]; r.Namespace == namespace && r.Name == name {
			own = r.Rules
		}
	}
	if own == nil {
		return rules
	}
	_, more := validation.Covers(own, rules)
	return more
}

// clusterRules are those of a default ClusterRole. An aggregated one has those of others.
func (d *Defaults) clusterRules(name string) []rbacv1.PolicyRule {
	at := slices.IndexFunc(d.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == name })
	if at < 0 {
		return nil
	}
	role := &d.ClusterRoles[at]
	rules := slices.Clone(role.Rules)
	if role.AggregationRule == nil {
		return rules
	}
	for _, s := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			continue // it selects nothing
		}
		for i := range d.ClusterRoles {
			// A role that is aggregated itself adds nothing that its parts do not have.
			if r := &d.ClusterRoles[i]; r.AggregationRule == nil && selector.Matches(labels.Set(r.Labels)) {
				rules = append(rules, r.Rules...)
			}
		}
	}
	return rules
}

func clusterAdmins(o *Objects, d *Defaults) Verdict {
	var found []string
	for _, b := range o.bindings() {
		if b.role.Kind != clusterRole || b.role.Name != adminRole {
			continue
		}
		for _, s := range b.beyond(d) {
			found = append(found, fmt.Sprintf("%s: %s", b, subject(s)))
		}
	}
	if found != nil {
		return person("%s", some(found))
	}
	return pass("the default bindings alone")
}

func wildcards(o *Objects, d *Defaults) Verdict {
	var found []string
	each := func(namespace, name string, rules []rbacv1.PolicyRule) {
		wild := func(list []string) bool { return slices.Contains(list, "*") }
		if slices.ContainsFunc(d.excess(namespace, name, rules), func(r rbacv1.PolicyRule) bool {
			return wild(r.Verbs) || wild(r.Resources) || wild(r.APIGroups) || wild(r.NonResourceURLs)
		}) {
			found = append(found, strings.TrimPrefix(namespace+"/"+name, "/"))
		}
	}
	for i := range o.ClusterRoles {
		each("", o.ClusterRoles[i].Name, o.ClusterRoles[i].Rules)
	}
	for i := range o.Roles {
		each(o.Roles[i].Namespace, o.Roles[i].Name, o.Roles[i].Rules)
	}
	if found != nil {
		return person("%s", some(found))
	}
	return pass("none besides those of the default roles")
}

// want is a right: any of the verbs on the resource.
type want struct {
	verbs           []string
	group, resource string
}

func (w want) in(rules []rbacv1.PolicyRule) bool {
	has := func(list []string, values ...string) bool {
		return slices.Contains(list, "*") ||
			slices.ContainsFunc(values, func(v string) bool { return slices.Contains(list, v) })
	}
	resources := []string{w.resource}
	if _, sub, ok := strings.Cut(w.resource, "/"); ok {
		resources = append(resources, "*/"+sub)
	}
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return has(r.APIGroups, w.group) && has(r.Resources, resources...) && has(r.Verbs, w.verbs...)
	})
}

func anyIn(wanted []want, rules []rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(wanted, func(w want) bool { return w.in(rules) })
}

// grants lists the bindings that give one of the rights beyond the defaults: to other subjects, or
// by rules that a default role has not.
func grants(wanted ...want) func(*Objects, *Defaults) Verdict {
	return func(o *Objects, d *Defaults) Verdict {
		var found []string
		for _, b := range o.bindings() {
			rules := o.rules(b)
			if !anyIn(wanted, rules) || len(b.subjects) == 0 {
				continue
			}
			namespace := b.namespace
			if b.role.Kind == clusterRole {
				namespace = ""
			}
			others := b.beyond(d)
			if len(others) == 0 && !anyIn(wanted, d.excess(namespace, b.role.Name, rules)) {
				continue
			}
			if len(others) == 0 {
				others = b.subjects
			}
			found = append(found, fmt.Sprintf("%s of %s: %s", b, b.role.Name, subject(others[0])))
		}
		if found != nil {
			return person("%s", some(found))
		}
		return pass("nobody besides the subjects of default bindings")
	}
}
