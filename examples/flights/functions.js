// JavaScript functions on New York's flights of 2013. luxon, a library of 250 KB, is loaded once, into the snapshot
// from which every worker's isolate boots.
import { DateTime } from "./node_modules/luxon/build/es6/luxon.js";

const EARTH_RADIUS_MILES = 3958.7613;
const radians = (degrees) => (degrees * Math.PI) / 180;

// Miles along the surface between two places (the haversine formula).
udf(
  "great_circle_js(lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE) -> DOUBLE",
  (lat1, lon1, lat2, lon2) => {
    const a = radians(lat1);
    const b = radians(lat2);
    const h =
      Math.sin((b - a) / 2) ** 2 + Math.cos(a) * Math.cos(b) * Math.sin(radians(lon2 - lon1) / 2) ** 2;
    return 2 * EARTH_RADIUS_MILES * Math.asin(Math.sqrt(h));
  },
);

// When a flight arrives, on the clocks of where it arrives.
udf(
  "arrival(departure TIMESTAMP, minutes DOUBLE, zone VARCHAR) -> STRUCT(clock VARCHAR, weekday VARCHAR, next_day BOOLEAN)",
  { warmup: [[new Date(0), 300, "America/Los_Angeles"]] },
  (departure, minutes, zone) => {
    const start = DateTime.fromJSDate(departure, { zone: "UTC" });
    const end = start.plus({ minutes }).setZone(zone);
    const here = start.setZone("America/New_York");
    return {
      clock: end.toFormat("HH:mm"),
      weekday: end.toFormat("cccc"),
      next_day: !end.hasSame(here, "day"),
    };
  },
);

// An airport's name for a web address.
udf("slug(name VARCHAR) -> VARCHAR", (name) =>
  name
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, ""),
);

// The part of the wind that blows against a runway's direction: whole columns, as typed arrays.
udf(
  "headwind(direction DOUBLE, mph DOUBLE, runway DOUBLE) -> DOUBLE",
  { vectorized: true },
  (direction, mph, runway) =>
    mph.map((speed, row) => speed * Math.cos(radians(direction[row] - runway[row]))),
);
