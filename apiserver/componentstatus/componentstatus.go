// Package componentstatus serves the kind ComponentStatus: the checks of a server's readiness.
package componentstatus

import (
	"context"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/barque/barque/apiserver/resource"
)

// statuses is the storage of componentstatuses: the checks that this server's readiness depends on,
// each made on request.
type statuses struct {
	rest.TableConvertor
	checks []healthz.HealthChecker
}

var (
	_ rest.Lister               = statuses{}
	_ rest.Getter               = statuses{}
	_ rest.Scoper               = statuses{}
	_ rest.ShortNamesProvider   = statuses{}
	_ rest.SingularNameProvider = statuses{}
)

// Resource serves the components that these checks are of.
func Resource(checks []healthz.HealthChecker) resource.Resource {
	return &resource.Computed{
		GroupVersion: corev1.SchemeGroupVersion,
		Name:         "componentstatuses",
		Types:        []runtime.Object{&corev1.ComponentStatus{}, &corev1.ComponentStatusList{}},
		Storage: func() (rest.Storage, error) {
			return statuses{resource.Table([]metav1.TableColumnDefinition{
				resource.Name(),
				resource.Column("Status", "string", "Whether the component is healthy."),
				resource.Column("Message", "string", "What the component says of itself."),
				resource.Column("Error", "string", "Why the component is not healthy."),
			}, row), checks}, nil
		},
	}
}

// New implements rest.Storage.
func (statuses) New() runtime.Object { return &corev1.ComponentStatus{} }

// NewList implements rest.Lister.
func (statuses) NewList() runtime.Object { return &corev1.ComponentStatusList{} }

// Destroy implements rest.Storage; there is nothing to destroy.
func (statuses) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (statuses) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (statuses) GetSingularName() string { return "componentstatus" }

// ShortNames implements rest.ShortNamesProvider.
func (statuses) ShortNames() []string { return []string{"cs"} }

// Get implements rest.Getter.
func (c statuses) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	i := slices.IndexFunc(c.checks, func(check healthz.HealthChecker) bool { return check.Name() == name })
	if i < 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatus"), name)
	}
	status, err := statusOf(ctx, c.checks[i])
	return status, err
}

// List implements rest.Lister. Components have no labels, and their name is their only field.
func (c statuses) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	list := &corev1.ComponentStatusList{Items: []corev1.ComponentStatus{}}
	for _, check := range c.checks {
		if options != nil && options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set{}) {
			continue
		}
		if options != nil && options.FieldSelector != nil &&
			!options.FieldSelector.Matches(fields.Set{"metadata.name": check.Name()}) {
			continue
		}
		status, err := statusOf(ctx, check)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *status)
	}
	return list, nil
}

func statusOf(ctx context.Context, check healthz.HealthChecker) (*corev1.ComponentStatus, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz/"+check.Name(), nil)
	if err != nil {
		return nil, err
	}
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := check.Check(r); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	return &corev1.ComponentStatus{
		ObjectMeta: metav1.ObjectMeta{Name: check.Name()},
		Conditions: []corev1.ComponentCondition{condition},
	}, nil
}

// row prints a component as its state of health.
func row(c *corev1.ComponentStatus, _ time.Time) []any {
	for _, condition := range c.Conditions {
		if condition.Type != corev1.ComponentHealthy {
			continue
		}
		state := "Unhealthy"
		if condition.Status == corev1.ConditionTrue {
			state = "Healthy"
		}
		return []any{c.Name, state, condition.Message, condition.Error}
	}
	return []any{c.Name, "Unknown", "", ""}
}
