// Package scheduling declares the resources of the scheduling.k8s.io API group: the classes that
// give names to pod priorities. Admission turns the name in a pod into a number.
package scheduling

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

const (
	// highestUser is the highest priority of classes that users may make.
	highestUser = 1_000_000_000
	// systemPrefix begins the names of classes that belong to the system.
	systemPrefix = "system-"
)

// systemValues are the system's own classes, which must exist with exactly these values.
func systemValues() map[string]int32 {
	return map[string]int32{
		"system-cluster-critical": 2 * highestUser,
		"system-node-critical":    2*highestUser + 1000,
	}
}

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{priorityClasses()} }

func priorityClasses() resource.Resource {
	return &resource.Kind[schedulingv1.PriorityClass]{
		GroupVersion:  schedulingv1.SchemeGroupVersion,
		Name:          "priorityclasses",
		Singular:      "priorityclass",
		ShortNames:    []string{"pc"},
		ClusterScoped: true,
		List:          &schedulingv1.PriorityClassList{},
		// The generation does not grow: the effects of a class on pods are immutable.
		Prepare: func(_ context.Context, c, old *schedulingv1.PriorityClass) {
			if old == nil {
				c.Generation = 1
			}
		},
		Default: func(c *schedulingv1.PriorityClass) {
			if c.PreemptionPolicy == nil {
				c.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
			}
		},
		Validate: validateClass,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Value", "integer", "The priority of pods of the class."),
			resource.Column("Global-Default", "boolean", "Whether the class is that of pods without one."),
			resource.Age(),
			resource.Column("PreemptionPolicy", "string", "Whether pods of the class take the place of others."),
		},
		Row: func(c *schedulingv1.PriorityClass, now time.Time) []any {
			return []any{c.Name, int64(c.Value), c.GlobalDefault, resource.Since(c.CreationTimestamp, now),
				string(ptr.Deref(c.PreemptionPolicy, ""))}
		},
	}
}

func validateClass(_ context.Context, c, old *schedulingv1.PriorityClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	if old != nil {
		if c.Value != old.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}
		return append(errs,
			validation.Immutable(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	errs = append(errs,
		validation.OptionalEnum(c.PreemptionPolicy, field.NewPath("preemptionPolicy"), corev1.PreemptLowerPriority,
			corev1.PreemptNever)...)
	value, known := systemValues()[c.Name]
	name := field.NewPath("metadata", "name")
	reserved := func(why string) field.ErrorList {
		return append(errs,
			field.Forbidden(name,
				fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s",
					systemPrefix, why)))
	}
	switch {
	case known && c.Value != value:
		return reserved(fmt.Sprintf("value of %s PriorityClass must be %d", c.Name, value))
	case known && c.GlobalDefault:
		return reserved(fmt.Sprintf("globalDefault of %s PriorityClass must be false", c.Name))
	case known:
	case strings.HasPrefix(c.Name, systemPrefix):
		return reserved(c.Name + " is not a known system priority class")
	case c.Value > highestUser:
		errs = append(errs,
			field.Forbidden(field.NewPath("value"),
				fmt.Sprintf("maximum allowed value of a user defined priority is %d", highestUser)))
	}
	return errs
}
