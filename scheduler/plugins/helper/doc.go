// Package helper has the parts that plugins of the scheduler share: normalised scores, the curve of
// a score over utilization, and the registration of events.
package helper
