// Writes vectors.jsonl: privacy strings made by the encoders of the IAB, each with the outcome that its fields require.
//
//     cd $(mktemp -d) && npm install @iabtcf/core@1.5.6 @iabgpp/cmpapi@3.2.0
//     cp …/vectors.mjs . && node vectors.mjs > …/vectors.jsonl
//
// The expected outcome follows from the fields given to the encoder; no string is decoded here.

import { GVL, PurposeRestriction, TCModel, TCString } from "@iabtcf/core";
import { GppModel } from "@iabgpp/cmpapi";

const HOST = 10;
const DSP = 21;
const OTHER = 33;
const VENDOR_MAX = 120;
const OLD = new Date("2026-02-28T12:00:00Z");
const NEW = new Date("2026-03-01T00:00:00Z");
const PURPOSES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

// The same vectors in each run.
let seed = 1;
const random = (end) => (seed = (seed * 48271) % 0x7fffffff) % end;
const range = (first, last) => Array.from({ length: last - first + 1 }, (_, index) => first + index);

const vectors = [];
const signals = (pairs) => new URLSearchParams(pairs).toString().replaceAll("%7E", "~").replaceAll("%2C", ",");
function vector(name, expected, pairs, config = {}, dsp = DSP) {
    vectors.push({ name, expected, query: signals(pairs), dsp, config: { host_vendor: HOST, ...config } });
}

// ---- TCF ----

// Vendors that declare every purpose on both legal bases, so that the encoder keeps all restrictions.
const vendors = Object.fromEntries(
    range(1, VENDOR_MAX).map((id) => [
        id,
        {
            id,
            name: `${id}`,
            purposes: PURPOSES,
            legIntPurposes: PURPOSES,
            flexiblePurposes: PURPOSES,
            specialPurposes: [],
            features: [],
            specialFeatures: [],
            policyUrl: "https://example.com",
        },
    ]),
);
const list = {
    gvlSpecificationVersion: 3,
    vendorListVersion: 50,
    tcfPolicyVersion: 5,
    lastUpdated: OLD.toISOString(),
    purposes: Object.fromEntries(PURPOSES.map((id) => [id, { id, name: `${id}`, description: "", illustrations: [] }])),
    specialPurposes: {},
    features: {},
    specialFeatures: {},
    stacks: {},
    dataCategories: {},
    vendors,
};

const ALLOWED = {
    version: 2,
    at: OLD,
    purposes: [1],
    consents: [HOST, DSP],
    interests: [],
    restrictions: [],
    disclosed: null,
    treatment: false,
    country: "AA",
    segments: [],
};

function tcf(fields) {
    const { version, at, purposes, consents, interests, restrictions, disclosed, treatment, country, segments } = {
        ...ALLOWED,
        ...fields,
    };
    const model = new TCModel(new GVL(list));
    model.cmpId = 31;
    model.cmpVersion = 7;
    model.isServiceSpecific = true;
    model.purposeConsents.set(purposes);
    model.purposeLegitimateInterests.set([2, 7, 9]);
    model.vendorConsents.set(consents);
    model.vendorLegitimateInterests.set(interests);
    for (const [purpose, type, ids] of restrictions) {
        ids.forEach((id) => model.publisherRestrictions.add(id, new PurposeRestriction(purpose, type)));
    }
    model.purposeOneTreatment = treatment;
    model.publisherCountryCode = country;
    model.publisherConsents.set([1, 2]);
    model.created = at;
    model.lastUpdated = at;
    const core = TCString.encode(model, { version, segments: ["core"] });
    const others = segments.map((segment) => {
        // The encoder adds all vendors of the list to this segment, so it gets a list with the disclosed ones only.
        const some = new TCModel(new GVL({ ...list, vendors: Object.fromEntries((disclosed ?? []).map((id) => [id, vendors[id]])) }));
        some.vendorsDisclosed.empty();
        some.isServiceSpecific = true;
        some.created = some.lastUpdated = at;
        return TCString.encode(some, { version: 2, segments: [segment] });
    });
    return [core, ...others].join(".");
}

function outcomeOf(fields, config = {}) {
    const { version, at, purposes, consents, restrictions, disclosed, treatment, country, segments } = { ...ALLOWED, ...fields };
    const treated = treatment && (config.purpose_one_treatment ?? []).includes(country);
    const both = [HOST, DSP];
    if (version !== 2) return "consent_version";
    if (!purposes.includes(1) && !treated) return "consent_purpose";
    if (!consents.includes(HOST)) return "consent_vendor_host";
    if (!consents.includes(DSP)) return "consent_vendor_dsp";
    if (restrictions.some(([purpose, type, ids]) => purpose === 1 && type === 0 && both.some((id) => ids.includes(id)))) return "consent_restricted";
    const when = config.disclosed_vendors ?? "by_date";
    const shown = segments.includes("vendorsDisclosed") ? disclosed : [];
    if ((when === "always" || (when === "by_date" && at >= NEW)) && !both.every((id) => shown.includes(id))) return "consent_undisclosed";
    return "allowed";
}

const judged = (name, fields, config) =>
    vector(name, outcomeOf(fields, config), { gdpr: 1, gdpr_consent: tcf(fields) }, config);

for (const purpose of range(1, 24)) {
    judged(`only purpose ${purpose}`, { purposes: [purpose] });
    judged(`all but purpose ${purpose}`, { purposes: range(1, 24).filter((it) => it !== purpose) });
}
const interests = { none: [], ranges: [5, VENDOR_MAX], bits: range(1, VENDOR_MAX).filter((id) => id % 2) };
const encodings = {
    ranges: (ids) => [...ids, 100, VENDOR_MAX],
    bits: (ids) => [...range(40, VENDOR_MAX).filter((id) => id % 2), ...ids],
};
for (const [encoding, add] of Object.entries(encodings)) {
    for (const ids of [[], [HOST], [DSP], [HOST, DSP]]) {
        for (const [kind, interested] of Object.entries(interests)) {
            judged(`consent of ${ids} in ${encoding}, interests ${kind}`, { consents: add(ids), interests: interested });
        }
    }
}
for (const [first, last] of [[11, 20], [11, 21], [21, 30], [20, 22], [22, 30], [1, 9], [1, 10], [10, 21], [9, 22]]) {
    judged(`consent in range ${first} to ${last}`, { consents: [...range(first, last), VENDOR_MAX] });
    judged(`consent of the host and range ${first} to ${last}`, { consents: [HOST, ...range(first, last), VENDOR_MAX] });
}
for (const max of [HOST, DSP - 1, DSP]) judged(`vendors up to ${max}`, { consents: range(1, max) });
for (const purpose of [1, 2, 3, 11]) {
    for (const type of [0, 1, 2]) {
        for (const ids of [[HOST], [DSP], [OTHER], range(1, 60)]) {
            judged(`restriction ${purpose}/${type} of ${ids[0]} to ${ids.at(-1)}`, {
                restrictions: [[purpose, type, ids]],
                interests: interests[["none", "ranges", "bits"][random(3)]],
            });
        }
    }
}
for (const last of [[OTHER], [HOST, OTHER], [12, 14, DSP]]) {
    const earlier = [[2, 0, [HOST, DSP]], [1, 1, [HOST, DSP]], [3, 0, range(1, 90)]];
    judged(`four restrictions, the last of ${last}`, { restrictions: [...earlier, [1, 0, last]] });
    judged(`four restrictions, the first of ${last}`, { restrictions: [[1, 0, last], ...earlier] });
}
for (const disclosed_vendors of ["by_date", "always", "never"]) {
    for (const at of [OLD, NEW]) {
        for (const disclosed of [[HOST], [DSP], [HOST, DSP], [HOST, DSP, VENDOR_MAX], range(1, 50), [...range(1, 20), ...range(22, 90)]]) {
            for (const segments of [[], ["vendorsDisclosed"], ["publisherTC", "vendorsDisclosed"]]) {
                if (segments.length !== 1 && disclosed.length > 3) continue;
                const shown = segments.length ? `${disclosed[0]} to ${disclosed.at(-1)}` : "no vendors";
                judged(`${disclosed_vendors}, ${at.toISOString()} discloses ${shown}`, { at, disclosed, segments }, { disclosed_vendors });
            }
        }
    }
}
for (const purposes of [[1], [2]]) {
    for (const country of ["DE", "FR"]) {
        for (const purpose_one_treatment of [[], ["IT", "DE"]]) {
            for (const treatment of [false, true]) {
                judged(`treatment ${treatment} in ${country}`, { purposes, country, treatment }, { purpose_one_treatment });
            }
        }
    }
}
judged("version 1", { version: 1 });

// ---- GPP ----

function set(model, section, fields) {
    Object.entries(fields).forEach(([field, value]) => model.setFieldValue(section, field, value));
}

function tcfSection(fields) {
    const { at, purposes, consents, restrictions, disclosed } = { ...ALLOWED, ...fields };
    const model = new GppModel();
    set(model, "tcfeuv2", {
        PurposeConsents: range(1, 24).map((purpose) => purposes.includes(purpose)),
        VendorConsents: consents,
        PublisherRestrictions: restrictions.map(([key, type, rangeIds]) => ({ getKey: () => key, getType: () => type, getIds: () => rangeIds })),
        VendorsDisclosed: disclosed ?? [],
        LastUpdated: at,
    });
    return model;
}
for (const fields of [
    {},
    { purposes: [2] },
    { consents: [DSP] },
    { consents: [HOST] },
    { consents: [...range(1, 60), 90, 100, 110] },
    { consents: [5, 6, 7, HOST, 100] },
    { restrictions: [[1, 0, [DSP]]] },
    { restrictions: [[1, 1, [DSP]], [2, 0, [HOST, DSP]]] },
    { at: NEW, disclosed: [HOST] },
    { at: NEW, disclosed: [HOST, DSP] },
    { at: NEW, disclosed: range(1, 100) },
]) {
    const all = { ...fields, segments: ["vendorsDisclosed"] };
    const model = tcfSection(all);
    const text = JSON.stringify(fields);
    vector(`section 2 ${text}`, outcomeOf(all), { gpp_sid: 2, gdpr: 0, gpp: model.encode() });
    vector(`section 2 does not apply ${text}`, "allowed", { gpp_sid: 6, gdpr: 1, gpp: model.encode() });
}

const SECTIONS = [
    "usnat", "usca", "usva", "usco", "usut", "usct", "usfl", "usmt", "usor", "ustx", "usde",
    "usia", "usne", "usnh", "usnj", "ustn", "usmn", "usmd", "usin", "usky", "usri",
]; // prettier-ignore
const ID_FIRST = 7;
const optOuts = (name) => ({ usnat: ["SaleOptOut", "SharingOptOut", "TargetedAdvertisingOptOut"], usca: ["SaleOptOut", "SharingOptOut"] })[name]
    ?? ["SaleOptOut", "TargetedAdvertisingOptOut"]; // prettier-ignore

const hasGpc = (name) => !["usva", "usut", "usfl", "usin", "usky", "usri"].includes(name);

// All notices are 1 (given), so that a value read from a neighbouring field is noticed.
function state(model, name, fields) {
    model.setFieldValue(name, optOuts(name)[0], 0);
    for (const field of Object.keys(model.getSection(name))) {
        if (field.endsWith("Notice")) model.setFieldValue(name, field, 1);
    }
    for (const field of optOuts(name)) model.setFieldValue(name, field, 2);
    if (hasGpc(name)) model.setFieldValue(name, "GpcSegmentIncluded", false);
    set(model, name, fields);
}

SECTIONS.forEach((name, index) => {
    const id = ID_FIRST + index;
    for (const field of optOuts(name)) {
        for (const value of [0, 1, 2]) {
            const model = new GppModel();
            state(model, name, { [field]: value });
            vector(`${name} ${field} ${value}`, value === 1 ? "us_opt_out" : "allowed", { gpp_sid: id, gpp: model.encode() });
        }
    }
    const model = new GppModel();
    state(model, name, { SaleOptOut: 1 });
    vector(`${name} without gpp_sid`, "us_opt_out", { gpp: model.encode() });
    vector(`${name} without gpp_sid, ignored`, "allowed", { gpp: model.encode() }, { us: { without_sid: "none" } });
    vector(`${name} does not apply`, "allowed", { gpp_sid: id === 7 ? 8 : 7, gpp: model.encode() });
    if (hasGpc(name)) {
        for (const Gpc of [false, true]) {
            const model = new GppModel();
            state(model, name, { GpcSegmentIncluded: true, Gpc });
            vector(`${name} GPC ${Gpc}`, Gpc ? "us_opt_out" : "allowed", { gpp_sid: id, gpp: model.encode() });
            vector(`${name} GPC ${Gpc}, ignored`, "allowed", { gpp_sid: id, gpp: model.encode() }, { gpc: "ignore" });
        }
    }
});
for (const ignored of ["sale", "sharing", "targeted"]) {
    for (const field of optOuts("usnat")) {
        const model = new GppModel();
        state(model, "usnat", { Version: 1, [field]: 1 });
        const expected = field.toLowerCase().startsWith(ignored) ? "allowed" : "us_opt_out";
        vector(`usnat ${field}, ${ignored} ignored`, expected, { gpp_sid: 7, gpp: model.encode() }, { us: { [ignored]: "ignore" } });
    }
}
for (let round = 0; round < 40; round++) {
    const model = round % 2 ? tcfSection({}) : new GppModel();
    const chosen = SECTIONS.filter(() => random(3) === 0);
    const applying = [];
    let expected = "allowed";
    for (const name of chosen) {
        const isOut = random(6) === 0;
        const applies = random(2) === 0;
        state(model, name, isOut ? { [optOuts(name)[random(optOuts(name).length)]]: 1 } : {});
        if (applies) applying.push(ID_FIRST + SECTIONS.indexOf(name));
        if (isOut && applies) expected = "us_opt_out";
    }
    applying.push(2);
    if (!(round % 2)) expected = "consent_missing";
    vector(`sections ${chosen}`, expected, { gpp_sid: applying.join(","), gpp: model.encode() });
}
for (const notice of "YN-") {
    for (const sale of "YN-") {
        for (const agreement of "YN-") {
            const text = `1${notice}${sale}${agreement}`;
            const expected = sale === "Y" ? "us_opt_out" : "allowed";
            vector(`us_privacy ${text}`, expected, { us_privacy: text });
            if (agreement !== "N") continue;
            const model = new GppModel();
            set(model, "uspv1", { Notice: notice, OptOutSale: sale, LspaCovered: agreement });
            vector(`uspv1 ${text}`, expected, { gpp_sid: 6, gpp: model.encode() });
        }
    }
}

process.stdout.write(vectors.map((it) => `${JSON.stringify(it)}\n`).join(""));
