// Package abac decides by a file of policies, as kube-apiserver's mode ABAC does. Policies are
// additive, and no policy denies. The library has no such authorizer.
package abac

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/configfile"
)

const (
	apiVersion = "abac.authorization.kubernetes.io/v1beta1"
	kind       = "Policy"
	every      = "*"
)

// policy is a line of the file.
type policy struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       spec   `json:"spec"`
}

// spec permits requests. An empty field matches nothing, and "*" everything; a policy without a
// user matches by its group alone, and the other way round.
type spec struct {
	User            string `json:"user,omitempty"`
	Group           string `json:"group,omitempty"`
	Readonly        bool   `json:"readonly,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	NonResourcePath string `json:"nonResourcePath,omitempty"`
}

// Authorizer decides by the policies that are in effect.
type Authorizer struct{ policies atomic.Pointer[[]spec] }

// New reads the policies of a file.
func New(data []byte) (*Authorizer, error) {
	a := &Authorizer{}
	return a, a.Replace(data)
}

// Replace puts another content of the file into effect.
func (a *Authorizer) Replace(data []byte) error {
	policies, err := parse(data)
	if err != nil {
		return err
	}
	a.policies.Store(&policies)
	return nil
}

// maxLine bounds a policy.
const maxLine = 1 << 20

// parse reads one policy from each line. Empty lines and comments are left out.
func parse(data []byte) ([]spec, error) {
	var out []spec
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var p policy
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields() // a typing error must not widen a policy
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("line %d: want a policy in JSON: %w", n, configfile.Plain(err))
		}
		switch {
		case d.More():
			return nil, fmt.Errorf("line %d: want one policy in each line", n)
		case p.APIVersion != apiVersion || p.Kind != kind:
			return nil,
				fmt.Errorf("line %d: it is a %s of %s: want a %s of %s", n, p.Kind, p.APIVersion, kind, apiVersion)
		case p.Spec.User == "" && p.Spec.Group == "":
			return nil, fmt.Errorf("line %d: the policy has neither user nor group, so it matches nobody", n)
		}
		out = append(out, p.Spec)
	}
	if lines.Err() != nil {
		return nil, fmt.Errorf("it has a line of more than %d bytes: want one policy in each line", maxLine)
	}
	if len(out) == 0 {
		return nil, errors.New("it has no policy: want one in JSON in each line")
	}
	return out, nil
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(_ context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, p := range *a.policies.Load() {
		if p.isFor(r.GetUser()) && (!p.Readonly || r.IsReadOnly()) && p.permits(r) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "no ABAC policy matched", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, r authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, r))
}

// EvaluateConditions implements authorizer.Authorizer. No decision of this one has conditions.
func (a *Authorizer) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizer) RulesFor(
	_ context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, p := range *a.policies.Load() {
		if !p.isFor(who) {
			continue
		}
		verbs := []string{every}
		if p.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if p.Resource != "" && (p.Namespace == every || p.Namespace == namespace) {
			resources = append(resources,
				&authorizer.DefaultResourceRuleInfo{Verbs: verbs, APIGroups: []string{p.APIGroup},
					Resources: []string{p.Resource}})
		}
		if p.NonResourcePath != "" {
			paths = append(paths,
				&authorizer.DefaultNonResourceRuleInfo{Verbs: verbs, NonResourceURLs: []string{p.NonResourcePath}})
		}
	}
	return resources, paths, false, nil
}

func (p *spec) isFor(who user.Info) bool {
	if who == nil || p.User == "" && p.Group == "" {
		return false
	}
	return (p.User == "" || p.User == every || p.User == who.GetName()) &&
		(p.Group == "" || p.Group == every || slices.Contains(who.GetGroups(), p.Group))
}

func (p *spec) permits(r authorizer.Attributes) bool {
	if !r.IsResourceRequest() {
		prefix, wild := strings.CutSuffix(p.NonResourcePath, every)
		return p.NonResourcePath != "" &&
			(p.NonResourcePath == r.GetPath() || wild && strings.HasPrefix(r.GetPath(), prefix))
	}
	matches := func(want, is string) bool { return want == every || want == is }
	return matches(p.Namespace, r.GetNamespace()) && matches(p.Resource, r.GetResource()) &&
		matches(p.APIGroup, r.GetAPIGroup())
}
