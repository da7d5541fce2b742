package batch

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSchedule checks when jobs are made. The time zone has a field of its own; schedules that
// have it inside, from the time before that field, may keep it.
func validateSchedule(spec, was *batchv1.CronJobSpec, at *field.Path) field.ErrorList {
	if spec.Schedule == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if err := parseSchedule(spec.Schedule); err != nil {
		errs = append(errs, field.Invalid(at, spec.Schedule, err.Error()))
	}
	if !strings.Contains(spec.Schedule, "TZ") {
		return errs
	}
	switch {
	case !strings.Contains(was.Schedule, "TZ"):
		errs = append(errs,
			field.Invalid(at, spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	case spec.TimeZone != nil:
		errs = append(errs,
			field.Invalid(at, spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	}
	return errs
}

// parseSchedule returns the fault of a schedule. The parser panics on some, such as "TZ=0".
func parseSchedule(schedule string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(schedule)
	return err
}

// zonePart is one part of the name of a time zone between slashes, as IANA's rules and its
// backward-compatible names have it.
var zonePart = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,14}$`)

func validateTimeZone(zone *string, at *field.Path) field.ErrorList {
	if zone == nil {
		return nil
	}
	if *zone == "" {
		return field.ErrorList{field.Invalid(at, *zone, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(at, *zone, "unknown time zone "+*zone)}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*zone, "Local") {
		errs = append(errs,
			field.Invalid(at, *zone,
				"timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		errs = append(errs, field.Invalid(at, *zone, err.Error()))
	}
	return errs
}
