package helper

import (
	"math"

	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// MostAllocated is the share of the total that is used, in percent.
func MostAllocated(used, total int64) int64 { return Percent(min(used, total), total) }

// Percent is part·100/whole, rounded down, without an overflow for absurd amounts.
func Percent(part, whole int64) int64 {
	if part > math.MaxInt64/fwk.MaxScore {
		return part / (whole / fwk.MaxScore)
	}
	return part * fwk.MaxScore / whole
}

// MaxShapeScore is the greatest score of a shape's point.
const MaxShapeScore = 10

// BrokenLine scores by utilization, in percent, along the line through the points of a shape; it is
// level before the first and after the last.
func BrokenLine(shape []configv1.UtilizationShapePoint) func(used, total int64) int64 {
	at := func(i int) (utilization, score int64) {
		return int64(shape[i].Utilization), int64(shape[i].Score) * fwk.MaxScore / MaxShapeScore
	}
	return func(used, total int64) int64 {
		utilization := MostAllocated(used, total)
		for i := range shape {
			x, y := at(i)
			if utilization > x {
				continue
			}
			if i == 0 {
				return y
			}
			x0, y0 := at(i - 1)
			return y0 + (y-y0)*(utilization-x0)/(x-x0)
		}
		_, y := at(len(shape) - 1)
		return y
	}
}
