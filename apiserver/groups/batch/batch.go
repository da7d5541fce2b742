// Package batch declares the resources of the batch API group (batch/v1): jobs, whose pods run
// until they succeed, and cron jobs, which make jobs by a schedule.
//
// It owns their defaults, validation and printing, among them the rules by which a job's status may
// change. They bind Barque's job controller and any controller named in spec.managedBy alike.
package batch

import (
	"fmt"
	// Time zones of cron jobs are the same on every server, with any host.
	_ "time/tzdata"

	batchv1 "k8s.io/api/batch/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/resource"
)

var version = batchv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		jobs(),
		cronJobs(),
	}
}

// nameWarnings warns of a name that pods cannot have as it is.
func nameWarnings(name string) []string {
	if msgs := utilvalidation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{
			fmt.Sprintf(
				"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
	}
	return nil
}

// specWarnings warns of values in a job spec at a path that are valid, but probably a mistake.
func specWarnings(spec *batchv1.JobSpec, path ...string) []string {
	var out []string
	if isIndexed(spec) && ptr.Deref(spec.Completions, 0) > manyCompletions &&
		ptr.Deref(spec.Parallelism, 0) > mostParallelOfMany {
		out = append(out,
			fmt.Sprintf(
				"%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
					"Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
				field.NewPath(path[0], path[1:]...)))
	}
	return append(out, warn.Spec(&spec.Template.Spec, append(path, "template")...)...)
}

func isIndexed(spec *batchv1.JobSpec) bool {
	return ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// dropUnserved removes fields of a feature that is off: workload-aware scheduling.
func dropUnserved(spec *batchv1.JobSpec) { spec.Scheduling = nil }
