package core

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func podTemplates() resource.Resource {
	return &resource.Kind[corev1.PodTemplate]{
		GroupVersion:  version,
		Name:          "podtemplates",
		Singular:      "podtemplate",
		List:          &corev1.PodTemplateList{},
		ReturnDeleted: true,
		Generation:    true,
		Default:       func(t *corev1.PodTemplate) { podtemplate.Default(&t.Template) },
		Validate: func(_ context.Context, t, old *corev1.PodTemplate) field.ErrorList {
			errs := validation.Meta(t, old, true, validation.SubdomainName)
			return append(errs, podtemplate.Validate(&t.Template, field.NewPath("template"))...)
		},
		Warnings: func(_ context.Context, t, old *corev1.PodTemplate) []string {
			if old != nil && t.Generation == old.Generation {
				return nil
			}
			return warn.Template("", &t.Template, "template")
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Containers", "string", "Names of each container in the template."),
			resource.Column("Images", "string", "Images referenced by each container in the template."),
			resource.Column("Pod Labels", "string", "Labels of pods made from the template."),
			resource.Age(),
		},
		Row: func(t *corev1.PodTemplate, now time.Time) []any {
			cells := podtemplate.Cells(&t.Template.Spec, nil)
			return []any{t.Name, cells[0], cells[1], resource.FormatLabels(t.Template.Labels),
				resource.Since(t.CreationTimestamp, now)}
		},
	}
}
