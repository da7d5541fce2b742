package apps

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/resource"
)

func statefulSets() resource.Resource {
	return &resource.Kind[appsv1.StatefulSet]{
		GroupVersion: version,
		Name:         "statefulsets",
		Singular:     "statefulset",
		ShortNames:   []string{"sts"},
		Categories:   []string{"all"},
		List:         &appsv1.StatefulSetList{},
		Default:      defaultStatefulSet,
		Validate:     validateStatefulSet,
		Warnings:     statefulSetWarnings,
		Generation:   true,
		Status:       &resource.Status[appsv1.StatefulSet]{Validate: validateStatefulSetStatus},
		Scale: &resource.Scale[appsv1.StatefulSet]{
			Replicas: func(s *appsv1.StatefulSet) *int32 { return s.Spec.Replicas },
			Observed: func(s *appsv1.StatefulSet) int32 { return s.Status.Replicas },
			Selector: func(s *appsv1.StatefulSet) (string, error) { return selectorString(s.Spec.Selector) },
		},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Ready", "string", "How many pods are ready, of how many desired."),
			resource.Age(),
		}, podtemplate.Columns()[:2]...),
		Row: func(s *appsv1.StatefulSet, now time.Time) []any {
			return append([]any{
				s.Name,
				fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 0)),
				resource.Since(s.CreationTimestamp, now),
			}, podtemplate.Cells(&s.Spec.Template.Spec, nil)[:2]...)
		},
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	podtemplate.Default(&s.Spec.Template)
	spec := &s.Spec
	if spec.PodManagementPolicy == "" {
		spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	strategy := &spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		if strategy.RollingUpdate == nil {
			strategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
	}
	if rolling := strategy.RollingUpdate; rolling != nil &&
		strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		if rolling.Partition == nil {
			rolling.Partition = ptr.To[int32](0)
		}
		if rolling.MaxUnavailable == nil {
			rolling.MaxUnavailable = ptr.To(intstr.FromInt32(1))
		}
	}
	if spec.PersistentVolumeClaimRetentionPolicy == nil {
		spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	for _, when := range []*appsv1.PersistentVolumeClaimRetentionPolicyType{
		&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
	} {
		if *when == "" {
			*when = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
		}
	}
	if spec.Replicas == nil {
		spec.Replicas = ptr.To[int32](1)
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To[int32](10)
	}
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		podtemplate.DefaultClaim(claim)
		// Every stored set has them, even if its author left them out: revisions compare the whole.
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
	}
}

func statefulSetWarnings(_ context.Context, s, old *appsv1.StatefulSet) []string {
	var warnings []string
	if old == nil || s.Generation != old.Generation {
		warnings = warn.Template("", &s.Spec.Template, "spec", "template")
	}
	for i := range s.Spec.VolumeClaimTemplates {
		at := field.NewPath("spec", "volumeClaimTemplates").Index(i).Child("spec")
		warnings = append(warnings, warn.Claim(&s.Spec.VolumeClaimTemplates[i].Spec, at)...)
	}
	if ptr.Deref(s.Spec.RevisionHistoryLimit, 0) < 0 {
		warnings = append(warnings,
			"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}
