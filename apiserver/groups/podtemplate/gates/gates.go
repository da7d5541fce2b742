// Package gates refuses the fields of a pod's spec that depend on a feature gate of Kubernetes
// which is off in the release line of this API.
package gates

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// gates are the feature gates of Kubernetes on which fields of a pod's spec depend, with their
// defaults in the release line whose API this is. Fields of those that are on are accepted and
// acted upon.
var gates = map[string]bool{
	"AtomicWriteVolumeUserFields":    false,
	"ClusterTrustBundleProjection":   true,
	"ContainerRestartRules":          true,
	"ContainerStopSignals":           false,
	"CrossNamespaceVolumeDataSource": false,
	"DynamicResourceAllocation":      true,
	"EmptyDirVolumeMode":             false,
	"EnvFiles":                       true,
	"EvictionRequestAPI":             false,
	"GRPCContainerProbeTLS":          false,
	"GenericWorkload":                false,
	"H2CContainerProbe":              false,
	"HostnameOverride":               true,
	"InPlacePodVerticalScaling":      true,
	"PodCertificateProjection":       true,
	"PodLevelResources":              true,
	"SELinuxChangePolicy":            true,
	"SupplementalGroupsPolicy":       true,
	"VolumeAttributesClass":          true,
	"VolumeBindMountOptions":         false,
}

// gated are the fields whose feature is off. Kubernetes drops them. Here they are refused, so that
// the user learns that they would have no effect.
var gated = map[string]string{
	"EmptyDirVolumeSource.Mode":    "EmptyDirVolumeMode",
	"Lifecycle.StopSignal":         "ContainerStopSignals",
	"PodSpec.EvictionResponders":   "EvictionRequestAPI",
	"PodSpec.SchedulingGroup":      "GenericWorkload",
	"VolumeMount.BindMountOptions": "VolumeBindMountOptions",
}

// step is a field of a struct that is gated, or below which gated fields are.
type step struct {
	index  int
	name   string // in JSON; "" when it is embedded
	gate   string // "" when the field is not gated itself
	deeper []step
}

var podSpecSteps = stepsOf(reflect.TypeFor[corev1.PodSpec]())

func stepsOf(t reflect.Type) []step {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[corev1.PodSpec]().PkgPath() {
		return nil
	}
	var steps []step
	for i := range t.NumField() {
		f := t.Field(i)
		s := step{index: i, gate: gated[t.Name()+"."+f.Name]}
		s.name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		if s.gate == "" {
			s.deeper = stepsOf(f.Type)
		}
		if s.gate != "" || len(s.deeper) > 0 {
			steps = append(steps, s)
		}
	}
	return steps
}

// Validate refuses the fields that are set although their feature is off.
func Validate(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	return follow(reflect.ValueOf(spec).Elem(), podSpecSteps, at)
}

func follow(v reflect.Value, steps []step, at *field.Path) (errs field.ErrorList) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return follow(v.Elem(), steps, at)
	case reflect.Slice:
		for i := range v.Len() {
			errs = append(errs, follow(v.Index(i), steps, at.Index(i))...)
		}
		return errs
	}
	for _, s := range steps {
		below := at
		if s.name != "" {
			below = at.Child(s.name)
		}
		f := v.Field(s.index)
		switch {
		case s.gate == "":
			errs = append(errs, follow(f, s.deeper, below)...)
		case !f.IsZero():
			errs = append(errs, field.Forbidden(below, fmt.Sprintf("belongs to the feature %s, which is off", s.gate)))
		}
	}
	return errs
}
