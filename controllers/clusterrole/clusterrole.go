// Package clusterrole fills aggregated ClusterRoles: one with an aggregationRule gets the rules of
// all ClusterRoles that it selects.
package clusterrole

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller aggregates ClusterRoles.
type Controller struct {
	cfg   Config
	roles cache.SharedIndexInformer
	list  rbaclisters.ClusterRoleLister
}

// New asks the factory for the informer it needs; it is called before it is started.
func New(cfg Config) (*Controller, error) {
	roles := cfg.Informers.Rbac().V1().ClusterRoles()
	return &Controller{cfg: cfg, roles: roles.Informer(), list: roles.Lister()}, nil
}

// Run aggregates for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("clusterrole-aggregation", 2, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.roles, func(old, now *rbacv1.ClusterRole) []runtime.Key {
		if old != nil && now != nil && equality.Semantic.DeepEqual(old.Rules, now.Rules) &&
			equality.Semantic.DeepEqual(old.Labels, now.Labels) &&
			equality.Semantic.DeepEqual(old.AggregationRule, now.AggregationRule) {
			return nil
		}
		return t.aggregating()
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

// aggregating returns the roles that are made of others. There are a handful.
func (t *term) aggregating() []runtime.Key {
	all, err := t.list.List(labels.Everything())
	if err != nil {
		return nil
	}
	var keys []runtime.Key
	for _, role := range all {
		if role.AggregationRule != nil {
			keys = append(keys, runtime.Key{Name: role.Name})
		}
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	role, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || role.AggregationRule == nil {
		return 0, err
	}
	all, err := t.list.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	rules, err := aggregate(role, all)
	if err != nil || equality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, err
	}
	role = role.DeepCopy()
	role.Rules = rules
	role, err = t.client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	if err != nil {
		return 0, fmt.Errorf("writing the aggregated rules of ClusterRole %s: %w", key.Name, err)
	}
	t.loop.Writes().Wrote(key, t.roles, role.ResourceVersion)
	return 0, nil
}

// aggregate joins the rules of the selected roles, in the order of their names and without
// repetition.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	sorted := slices.SortedFunc(slices.Values(all),
		func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	var rules []rbacv1.PolicyRule
	taken := map[string]bool{} // by their text: to compare each rule with each takes long
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregationRule of ClusterRole %s: %w", role.Name, err)
		}
		for _, other := range sorted {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if text := textOf(&rule); !taken[text] {
					taken[text] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

// textOf is the same for equal rules only. Rules may list entries with spaces, so the text of the
// type itself would confuse one entry with two.
func textOf(r *rbacv1.PolicyRule) string {
	return fmt.Sprintf("%q %q %q %q %q", r.Verbs, r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs)
}
