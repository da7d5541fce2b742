package batch

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// A job's status goes one way:
//
//	running ──▶ SuccessCriteriaMet ──▶ Complete (with completionTime)
//	       └──▶ FailureTarget ───────▶ Failed
//
// and a finished job has neither active, terminating nor uncounted pods. The rules bind every
// client that may write the status, as controllers other than Barque's can run jobs.
//
// Most rules are checked only if their fields change. So a change of the spec under a status that
// it makes invalid does not keep the controller from writing the rest of the status.

// statusChange is a write to the status of a job.
type statusChange struct {
	job, old *batchv1.Job
	at       *field.Path
	errs     field.ErrorList
}

func validateJobStatus(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	c := &statusChange{job: j, old: old, at: field.NewPath("status")}
	c.checkNumbers()
	c.checkUncounted()
	c.checkConditions()
	c.checkFinished()
	c.checkTimes()
	c.checkIndexes()
	return c.errs
}

func (c *statusChange) invalid(name string, value any, message string) {
	c.errs = append(c.errs, field.Invalid(c.at.Child(name), value, message))
}

func (c *statusChange) badConditions(message string) {
	c.invalid("conditions", field.OmitValueType{}, message)
}

// turned reports whether a condition has become true, or is true no more.
func (c *statusChange) turned(of batchv1.JobConditionType) bool {
	return hasCondition(c.job, of) != hasCondition(c.old, of)
}

func isFinished(j *batchv1.Job) bool {
	return hasCondition(j, batchv1.JobComplete) || hasCondition(j, batchv1.JobFailed)
}

func (c *statusChange) checkNumbers() {
	s, was := &c.job.Status, &c.old.Status
	c.errs = append(c.errs, validation.NonNegative(s.Active, c.at.Child("active"))...)
	c.errs = append(c.errs, validation.NonNegative(s.Succeeded, c.at.Child("succeeded"))...)
	c.errs = append(c.errs, validation.NonNegative(s.Failed, c.at.Child("failed"))...)
	c.errs = append(c.errs, validation.OptionalNonNegative(s.Ready, c.at.Child("ready"))...)
	c.errs = append(c.errs, validation.OptionalNonNegative(s.Terminating, c.at.Child("terminating"))...)

	if s.Failed < was.Failed {
		c.invalid("failed", s.Failed, "cannot decrease the failed counter")
	}
	// An indexed job that shrinks drops the indexes that it no longer has.
	shrinks := isIndexed(&c.job.Spec) && ptr.Equal(c.job.Spec.Completions, c.job.Spec.Parallelism)
	if s.Succeeded < was.Succeeded && !shrinks {
		c.invalid("succeeded", s.Succeeded, "cannot decrease the succeeded counter")
	}
	changed := s.Active != was.Active || !ptr.Equal(s.Ready, was.Ready)
	if changed && s.Ready != nil && *s.Ready > s.Active {
		c.invalid("ready", *s.Ready, "cannot set more ready pods than active")
	}
}

// checkUncounted checks the pods that have ended and are not yet in the counters.
func (c *statusChange) checkUncounted() {
	pods := c.job.Status.UncountedTerminatedPods
	if pods == nil {
		return
	}
	seen := map[types.UID]bool{}
	check := func(uids []types.UID, name string) {
		for i, uid := range uids {
			switch at := c.at.Child("uncountedTerminatedPods", name).Index(i); {
			case uid == "":
				c.errs = append(c.errs, field.Invalid(at, uid, "must not be empty"))
			case seen[uid]:
				c.errs = append(c.errs, field.Duplicate(at, uid))
			}
			seen[uid] = true
		}
	}
	check(pods.Succeeded, "succeeded")
	check(pods.Failed, "failed")
}

// checkConditions checks which conditions may be true together, and which follow on which.
func (c *statusChange) checkConditions() {
	complete, failed := hasCondition(c.job, batchv1.JobComplete), hasCondition(c.job, batchv1.JobFailed)
	met, target := hasCondition(c.job, batchv1.JobSuccessCriteriaMet), hasCondition(c.job, batchv1.JobFailureTarget)
	toComplete, toFailed := c.turned(batchv1.JobComplete), c.turned(batchv1.JobFailed)

	if complete && failed && (toComplete || toFailed) {
		c.badConditions("cannot set Complete=True and Failed=true conditions")
	}
	if complete && target && (toComplete || c.turned(batchv1.JobFailureTarget)) {
		c.badConditions("cannot set Complete=True and FailureTarget=true conditions")
	}
	if failed && !target && (toFailed || c.failedIndexesChanged()) {
		c.badConditions("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if complete && !met && (toComplete || c.turned(batchv1.JobSuccessCriteriaMet)) {
		c.badConditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
	if met && failed {
		c.badConditions("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if met && target {
		c.badConditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
	if complete && !met && c.job.Spec.SuccessPolicy != nil {
		c.badConditions("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	}
	c.checkWayBack()
}

// checkWayBack refuses to undo a final state.
func (c *statusChange) checkWayBack() {
	for _, of := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if hasCondition(c.old, of) && !hasCondition(c.job, of) {
			c.badConditions(fmt.Sprintf("cannot disable the terminal %s=True condition", of))
		}
	}
	was, met := hasCondition(c.old, batchv1.JobSuccessCriteriaMet), hasCondition(c.job, batchv1.JobSuccessCriteriaMet)
	if was && !met {
		c.badConditions("cannot disable the SuccessCriteriaMet=True condition")
	}
	if met && !was && hasCondition(c.old, batchv1.JobComplete) {
		c.badConditions("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
}

// checkFinished checks that a finished job has no pods left.
func (c *statusChange) checkFinished() {
	if !isFinished(c.job) {
		return
	}
	s, was, turned := &c.job.Status, &c.old.Status, !isFinished(c.old)
	if s.Active > 0 && (turned || s.Active != was.Active) {
		c.invalid("active", s.Active, "active>0 is invalid for finished job")
	}
	if ptr.Deref(s.Terminating, 0) > 0 && (turned || !ptr.Equal(s.Terminating, was.Terminating)) {
		c.invalid("terminating", *s.Terminating, "terminating>0 is invalid for finished job")
	}
	uncounted := s.UncountedTerminatedPods
	if uncounted != nil && len(uncounted.Failed)+len(uncounted.Succeeded) > 0 &&
		(turned || !apiequality.Semantic.DeepEqual(uncounted, was.UncountedTerminatedPods)) {
		c.invalid("uncountedTerminatedPods", uncounted, "must be empty for finished job")
	}
	// A suspended job of no completions is complete without ever having started.
	nothingToDo := ptr.Deref(c.job.Spec.Suspend, false) && ptr.Deref(c.job.Spec.Completions, 1) == 0
	if s.StartTime == nil && !nothingToDo && (turned || was.StartTime != nil) {
		c.errs = append(c.errs, field.Required(c.at.Child("startTime"), "startTime is required for finished job"))
	}
}

func (c *statusChange) checkTimes() {
	s, was, complete := &c.job.Status, &c.old.Status, hasCondition(c.job, batchv1.JobComplete)
	started, completed := !s.StartTime.Equal(was.StartTime), !s.CompletionTime.Equal(was.CompletionTime)

	if (completed || c.turned(batchv1.JobComplete)) && complete != (s.CompletionTime != nil) {
		if complete {
			c.errs = append(c.errs,
				field.Required(c.at.Child("completionTime"), "completionTime is required for Complete jobs"))
		} else {
			c.invalid("completionTime", s.CompletionTime,
				"cannot set completionTime when there is no Complete=True condition")
		}
	}
	if (started || completed) && s.CompletionTime.Before(s.StartTime) {
		c.invalid("completionTime", s.CompletionTime, "must be equal to or after `startTime`")
	}
	if completed && s.CompletionTime != nil && was.CompletionTime != nil {
		c.invalid("completionTime", s.CompletionTime, "field is immutable")
	}
	// A job that is resumed starts anew. Its spec may show that some time before its status does.
	resumes := hasCondition(c.old, batchv1.JobSuspended) &&
		conditionIs(c.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if started && was.StartTime != nil && !resumes && !ptr.Deref(c.job.Spec.Suspend, false) {
		c.invalid("startTime", s.StartTime, "field is immutable for unsuspended job once set")
	}
}

func (c *statusChange) failedIndexesChanged() bool {
	return !ptr.Equal(c.job.Status.FailedIndexes, c.old.Status.FailedIndexes)
}

func (c *statusChange) checkIndexes() {
	s, spec := &c.job.Status, &c.job.Spec
	if s.CompletedIndexes != c.old.Status.CompletedIndexes {
		c.checkList("completedIndexes", s.CompletedIndexes)
		if s.CompletedIndexes != "" && !isIndexed(spec) {
			c.invalid("completedIndexes", s.CompletedIndexes,
				"cannot set non-empty completedIndexes when non-indexed completion mode")
		}
	} else if !c.failedIndexesChanged() {
		return
	}
	if s.FailedIndexes == nil {
		return
	}
	if c.failedIndexesChanged() {
		if spec.BackoffLimitPerIndex == nil {
			c.invalid("failedIndexes", *s.FailedIndexes,
				"cannot set non-null failedIndexes when backoffLimitPerIndex is null")
		} else {
			c.checkList("failedIndexes", *s.FailedIndexes)
		}
	}
	if spec.Completions != nil {
		if index, both := overlap(s.CompletedIndexes, *s.FailedIndexes, *spec.Completions); both {
			c.invalid("failedIndexes", *s.FailedIndexes,
				fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", index))
		}
	}
}

// checkList checks the format of a list of indexes.
func (c *statusChange) checkList(name, list string) {
	if c.job.Spec.Completions == nil {
		return
	}
	if _, err := parseIndexes(list, *c.job.Spec.Completions); err != nil {
		c.invalid(name, list, fmt.Sprintf("error parsing %s: %s", name, err))
	}
}
